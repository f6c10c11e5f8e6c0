"""How a layer is spread over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb, lcm

from prestep.workloads.exchanges.context import Context
from prestep.workloads.job import JobSpec
from prestep.workloads.job.adapter import Adapter
from prestep.workloads.job.megatron import KeptPart, Megatron
from prestep.workloads.job.pytorch import PyTorch
from prestep.workloads.megatron.gemm import Numbers
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.parallel.group import Group
from prestep.workloads.parallel.groups import Groups
from prestep.workloads.routing import Loads, layers_of

# Of the names of parameters that only the expert data-parallel group shares.
EXPERTS_PREFIX = "experts."


@dataclass(frozen=True)
class Spread:
    """How experts are spread over ranks.

    Attributes
    ----------
    group : Group
        The expert-parallel ranks.
    tensor : Group or None
        Ranks that hold one expert together.
    loads : tuple of float
        Tokens of the busiest rank's experts, over the mean of all experts: the others wait for it.
    hosts : int
        Hosts that the group lies on; trays of one NVLink domain are one, since every rank there is reached directly.
    layers : tuple of tuple of float
        The loads of every layer with experts, where they differ; those of layers beyond are the last's.
    consecutive : bool
        Whether a token's experts are neighbours, and the next token's the next ones.
    """

    group: Group
    tensor: Group | None
    loads: Loads
    hosts: int = 1
    layers: tuple[Loads, ...] = ()
    consecutive: bool = False

    @property
    def ranks(self) -> int:
        """Ranks that wait for each other's tokens."""
        return self.group.size * (1 if self.tensor is None else self.tensor.size)

    def met(self, places: int, experts: int, chosen: int) -> float:
        """Of so many places with equal parts of the experts, the mean number that a token's choices fall into."""
        count = consecutive if self.consecutive else distinct
        return count(places, experts, chosen)

    def of(self, layer: int) -> Spread:
        """With the loads of a layer, counted from 0 among those with experts."""
        if not self.layers:
            return self
        return replace(self, loads=self.layers[min(layer, len(self.layers) - 1)])


def spread_of(groups: Groups, scenario: JobSpec, m: ModelSpec, me: int = 0) -> Spread:
    """How experts lie over the ranks of a rank's stage."""
    p, o = scenario.parallel, scenario.megatron
    group = groups.around("ep", me)
    tensor = groups.around("etp", me) if groups.grid.etp > 1 else None
    said = "uniform" if o.moe_force_load_balancing else p.imbalance
    layers = tuple(
        busiest(loads, p.ep, o.moe_capacity, o.moe_pad_to_capacity)
        for loads in layers_of(said, m.experts, m.experts_per_token)
    )
    hosts = groups.place.domains(group.ranks)
    several = layers if len(layers) > 1 else ()
    in_turn = p.routing == "consecutive"
    return Spread(group, tensor, layers[0], hosts, several, in_turn)


def busiest(
    loads: Sequence[float], ranks: int, capacity: float | None, padded: bool
) -> tuple[float, ...]:
    """Loads of the experts on the rank that has most, after tokens over an expert's capacity are dropped."""
    if capacity is not None:
        loads = [capacity if padded else min(load, capacity) for load in loads]
    local = len(loads) // ranks
    return max(
        (tuple(loads[i : i + local]) for i in range(0, len(loads), local)), key=sum
    )


def distinct(groups: int, experts: int, chosen: int) -> float:
    """Expected groups of experts that a token's choices fall into, when all choices are as likely."""
    rest = experts - experts // groups
    return groups * (1.0 - comb(rest, chosen) / comb(experts, chosen))


def consecutive(groups: int, experts: int, chosen: int) -> float:
    """Mean number of groups of experts that ``chosen`` neighbours fall into, where every token takes the next ones."""
    each = experts // groups
    starts = range(0, lcm(experts, chosen), chosen)
    met = (
        len({(start + i) % experts // each for i in range(chosen)}) for start in starts
    )
    return sum(met) / len(starts)


@dataclass(frozen=True)
class Shard:
    """How a layer is spread: its tensor-parallel group, and the tokens that this rank sees of a microbatch."""

    group: Group
    sequence: bool
    options: Megatron
    numbers: Numbers
    batch: int
    tokens: int  # of one sample on this rank, after context parallelism
    seq_len: int
    context: Context | None = None
    recompute_core: bool = False  # attention's inner part is run again in backward
    spread: Spread | None = None  # of experts
    packed: int | None = None  # tokens of a document, where attention sees no other
    adapter: Adapter = Adapter()  # noqa: RUF009 - frozen
    trainer: PyTorch | None = None  # whose layers these are, where not Megatron's

    def eager(self, part: str) -> bool:
        """Whether a part of a layer runs operator by operator."""
        return self.trainer is not None and part in self.trainer.eager_operators

    @property
    def counts_wait(self) -> bool:
        """Whether the host stops in a layer of experts until the GPU knows how many tokens come to each of them.

        Megatron's dispatchers do where experts are not padded: all-to-all waits for the copy of its counts (event of
        _maybe_dtoh_and_synchronize), all-gather copies them itself (.cpu()), DeepEP and HybridEP wait for their
        metadata before they allocate what arrives (token_dispatcher.py, fused_a2a.py). Whole steps in a CUDA graph
        know no host. So do PyTorch's all-to-alls of uneven parts (torchtitan, distributed/expert_parallel.py).
        """
        o = self.options
        if self.trainer is not None:
            several = self.spread is not None and self.spread.group.size > 1
            return several and o.moe_token_dispatcher in ("flex", "alltoall")
        return not o.moe_pad_to_capacity and "full_iteration" not in o.cuda_graph_scope

    @property
    def dtensors(self) -> bool:
        """Whether projections are spread as PyTorch's DTensors, not by Transformer Engine's user buffers."""
        spread = self.group.size > 1 and not self.options.tp_comm_overlap
        return self.trainer is not None and spread

    @property
    def compiled(self) -> bool:
        """Whether layers are compiled."""
        return self.trainer is not None and self.trainer.compiled_layers

    @property
    def loads(self) -> Loads:
        """Tokens of this rank's experts over the mean of all."""
        return self.spread.loads if self.spread is not None else ()

    @property
    def parts(self) -> int:
        """Ranks that have a part of every sequence each."""
        return 1 if self.context is None else self.context.group.size

    @property
    def gathers(self) -> bool:
        """Between tensor-parallel regions each rank has a part of the sequence."""
        return self.sequence and self.group.size > 1

    @property
    def rows(self) -> int:
        """Sequence positions between tensor-parallel regions."""
        return self.tokens // (self.group.size if self.sequence else 1)


@dataclass(frozen=True)
class Heads:
    """Attention heads of one rank: of queries, of keys and values, and the elements of each.

    ``dim``: of a query and of a key; ``values``: of a value; ``alibi``: a bias by distance is added to their scores;
    ``window``: tokens that a query looks back, 0: all.
    """

    queries: int
    keys: int
    dim: int
    values: int
    alibi: bool = False
    window: int = 0

    @property
    def narrow(self) -> bool:
        """Values are narrower than queries."""
        return self.values != self.dim

    def width(self, way: str) -> int:
        """Of heads as wide as products are on average: backward three of five are as wide as queries, two as values."""
        if way == "bwd":
            return round((3 * self.dim + 2 * self.values) / 5)
        return (self.dim + self.values) // 2


def unquantized(s: Shard) -> Shard:
    """For products that stay in 16 bits."""
    return replace(s, numbers=replace(s.numbers, products=""))


def kept(s: Shard, part: KeptPart) -> Shard:
    """For a part whose products may be kept in another format than the layer's (a recipe's quantization by name)."""
    if part in s.options.kept_in_bf16:
        return unquantized(s)
    if part in s.options.kept_in_mxfp8 and s.numbers.products:
        numbers = replace(s.numbers, products="fp8", scaling="mx", transposes=False)
        return replace(s, numbers=numbers)
    return s


def fused_ops(s: Shard) -> Shard:
    """For a feed-forward part, which Transformer Engine's operation fuser may run (TEFusedMLP)."""
    if not s.options.use_transformer_engine_op_fuser:
        return s
    return replace(s, numbers=replace(s.numbers, casts=True))


def alone(group: Group) -> Group:
    """The group's first rank by itself."""
    return replace(group, ranks=group.ranks[:1], copies=[group.ranks[:1]])


def whole(s: Shard) -> Shard:
    """For a projection that is whole on every rank and sees its part of the sequence."""
    return replace(s, group=alone(s.group), sequence=False)
