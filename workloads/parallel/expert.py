"""Expert parallelism: blocks whose experts are spread over ranks."""

from __future__ import annotations

from workloads.models.model import ModelSpec
from workloads.parallel.group import Group
from workloads.torch.block import BlockParallel
from workloads.torch.modules import FeedForward
from workloads.torch.moe import MixtureOfExperts
from workloads.torch.tape import Tape


class ExpertParallel(BlockParallel):
    """Blocks whose experts are spread over a group of data-parallel ranks."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def feed_forward(
        self, t: Tape, m: ModelSpec, experts: bool
    ) -> MixtureOfExperts | FeedForward:
        return MixtureOfExperts(t, m, self.group) if experts else FeedForward(t, m)
