"""The compiled functions of one rank's step: what their pieces launch, and when their tensors are in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from prestep.workloads.capture.fusion.compile import Compiler
from prestep.workloads.capture.fusion.join import Launch
from prestep.workloads.capture.fusion.regions import arrange
from prestep.workloads.capture.fusion.residence import Residence
from prestep.workloads.capture.recording import RankRecording


class CompiledCalls:
    """Events of a rank in which pieces stand for operations, with the regions compiled.

    Attributes
    ----------
    events
        Of kinds that a recording has, and "piece".
    residence
        Which storages are in memory when.
    """

    def __init__(self, rank: RankRecording, compiler: Compiler) -> None:
        arranged = arrange(rank.events)
        self.events = arranged.events
        self._compiled = {
            number: compiler.compile(region, rank.alive)
            for number, region in arranged.regions.items()
        }
        self.residence = Residence(self._compiled, _resized(rank))

    def launches(self, piece: Mapping[str, Any]) -> tuple[Launch, ...]:
        """The kernels of a piece, by its event."""
        compiled = self._compiled[piece["number"]]
        pieces = compiled.backward if piece["backward"] else compiled.forward
        return pieces[piece["place"]]


def _resized(rank: RankRecording) -> set[int]:
    """Storages that the program takes while it has them, or had them before."""
    taken = Counter(e.values["storage"] for e in rank.events if e.kind == "allocate")
    return {s for s, times in taken.items() if times + (s in rank.alive) > 1}
