"""Dragonfly: groups of fully connected switches, and cables between every two groups."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from prestep.sim.errors import InputError, Mistake
from prestep.topologies import host
from prestep.topologies.core.quantity import LinkSpec
from prestep.topologies.fabric import Fabric
from prestep.topologies.fabric.builder import FabricBuilder
from prestep.topologies.fabric.wiring import CABLE, add_below, add_row, too_few


@dataclass(frozen=True)
class Params(host.Params):
    """Hosts as `prestep.topologies.host` makes them, and the switches between them.

    Attributes
    ----------
    hosts
        How many; switches and groups are filled one after the other, the last ones may hold fewer hosts.
    hosts_per_switch
        Hosts under one switch, with all their NICs.
    switches_per_group
        Switches of a group; each has a cable to each other one.
    global_cables
        Cables of one switch to other groups.
    local, wide
        One cable between two switches of a group, and between two groups (links of kind ``global``).
    """

    hosts: int = 18
    hosts_per_switch: int = 1
    switches_per_group: int = 4
    global_cables: int = 2
    local: LinkSpec = CABLE
    wide: LinkSpec = CABLE

    @property
    def groups(self) -> int:
        """Groups begun; all of their switches are there."""
        return -(-self.hosts // (self.hosts_per_switch * self.switches_per_group))

    @property
    def cables(self) -> int:
        """Between any two groups: a group's cables shared evenly, what is left over stays unused."""
        return self.switches_per_group * self.global_cables // max(1, self.groups - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        least = dict.fromkeys(
            (
                "hosts",
                "hosts_per_switch",
                "switches_per_group",
                "global_cables",
                "nics",
            ),
            1,
        )
        mistakes = too_few("dragonfly", self, least)
        if not mistakes and self.cables < 1:
            most = (
                (self.switches_per_group * self.global_cables + 1)
                * self.switches_per_group
                * self.hosts_per_switch
            )
            expected = f"at most {most}: a group has {self.switches_per_group * self.global_cables} cables to others"
            mistakes.append(Mistake("dragonfly", "hosts", str(self.hosts), expected))
        if mistakes:
            raise InputError(mistakes)


def build(params: Params) -> Fabric:
    r"""Groups of switches, every switch joined to all of its group, every group to all others.

    ::

        group0/switch0 --- group0/switch1        each of the four to the other three: kind local
              |      \   /      |      \
              |       \ /       |       \------- group1/switch3       kind global: `cables` to every other group
              |       / \       |
        group0/switch3 --- group0/switch2
              |
            host3                                all NICs of a host under one switch

    GPU 0 of host 0 reaches GPU 0 of host 1 over
    ``host0/gpu0 > host0/pcieswitch0 > host0/nic0 > group0/switch0 > group0/switch1 > host1/nic0 > host1/pcieswitch0 >
    host1/gpu0``. Between groups the way is at most local, global, local. Where two global cables meet in one switch of
    a third group, that way is as short or shorter, and is taken: routes here are those with the fewest hops.

    Parameters
    ----------
    params : Params

    Returns
    -------
    Fabric
        Nodes as `prestep.topologies.host` names them, prefixed ``host0/``; ``group0/switch0``; links of kind
        ``nic``, ``local``
        and ``global``; bandwidths in bytes/s, latencies in s. The largest has
        `switches_per_group * global_cables + 1` groups, with one cable between each two.

    Raises
    ------
    InputError
        If a count is too small, or a group has fewer cables than there are other groups.

    References
    ----------
    Kim et al., Technology-Driven, Highly-Scalable Dragonfly Topology (ISCA 2008), with the cables of a group going to
    the groups after it, in order.
    """
    builder = FabricBuilder()
    nics = host.add_hosts(builder, params, params.hosts)
    groups = [_add_group(builder, params, at) for at in range(params.groups)]
    flat = [switch for group in groups for switch in group]
    add_below(builder, nics, flat, params.hosts_per_switch, params.nic)
    for (a, b), count in _between(params, groups).items():
        builder.link(a, b, "global", params.wide, count)
    return builder.finish("dragonfly", params.gpu, "dragonfly")


def _add_group(builder: FabricBuilder, params: Params, group: int) -> list[str]:
    switches = add_row(builder, "switch", params.switches_per_group, f"group{group}/")
    pairs = [(a, b) for at, a in enumerate(switches) for b in switches[at + 1 :]]
    builder.cables([a for a, _ in pairs], [b for _, b in pairs], "local", params.local)
    return switches


def _between(params: Params, groups: list[list[str]]) -> Counter[tuple[str, str]]:
    """Cables between switches of two groups. Port t of a group is at switch t // global_cables."""
    found: Counter[tuple[str, str]] = Counter()
    for one in range(len(groups)):
        for other in range(one + 1, len(groups)):
            for cable in range(params.cables):
                ends = []
                for here, there in ((one, other), (other, one)):
                    port = ((there - here - 1) % len(groups)) * params.cables + cable
                    ends.append(groups[here][port // params.global_cables])
                found[ends[0], ends[1]] += 1
    return found
