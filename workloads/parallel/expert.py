"""Expert parallelism: blocks whose experts are spread over ranks."""

from __future__ import annotations

from prestep.workloads.models.model import ModelSpec
from prestep.workloads.parallel.group import Group
from prestep.workloads.torch.block import BlockParallel
from prestep.workloads.torch.modules import FeedForward
from prestep.workloads.torch.moe import MixtureOfExperts
from prestep.workloads.torch.tape import Tape


class ExpertParallel(BlockParallel):
    """Blocks whose experts are spread over a group of data-parallel ranks."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def feed_forward(
        self, t: Tape, m: ModelSpec, experts: bool
    ) -> MixtureOfExperts | FeedForward:
        return MixtureOfExperts(t, m, self.group) if experts else FeedForward(t, m)
