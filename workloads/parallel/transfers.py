"""Transfers of activations and gradients between the stages of a pipeline."""

from __future__ import annotations

from prestep.workloads.parallel.groups import Groups
from prestep.workloads.schedules.runtime import Batch, Recv, Send, Wait
from prestep.workloads.torch.tape import Tape


class Transfers:
    """Batches of sends and receives of one rank, each an event when it has ended.

    Parameters
    ----------
    t : Tape
        Of the rank.
    groups : Groups
        Where the ranks lie, and which transfers meet.
    size : float
        Bytes of an activation, or of a rank's part of it.
    by_pair : bool
        Whether lone transfers have a communicator of their two ranks.
    """

    run = 0  # of the schedule, which may run several times in a step

    def __init__(self, t: Tape, groups: Groups, size: float, by_pair: bool) -> None:
        self.tape, self.groups, self.size, self.by_pair = t, groups, size, by_pair
        self.pipeline = groups.grid.pipeline(t.rank)
        self.everywhere = len(groups.alike(t.rank))
        self.ended: dict[int, tuple[int, ...]] = {}
        self.copies: dict[int, list[int]] = {}

    def post(self, batch: Batch) -> None:
        """Issues a batch behind the computation so far."""
        t, stream = self.tape, self.stream(batch)
        parts = [self._rendezvous(op) for op in batch.ops]
        t.wait(t.record(), stream)
        t.cpu("p2p_batch")
        t.cpu("p2p_op", len(parts))
        t.communicate(parts, stream, "send_recv")
        self.ended[batch.handle] = t.record(stream)

    def wait(self, op: Wait) -> None:
        """Computation waits for a batch."""
        self.tape.wait(self.ended[op.handle])

    def stream(self, batch: Batch) -> str:
        """The stream of a batch's communicator."""
        return batch.stream(self.pipeline.index(self.tape.rank), self.by_pair)

    def _rendezvous(self, op: Send | Recv) -> int:
        """Where an activation meets another stage, with the copies of the transfer that it meets on links."""
        here, peer = self.tape.rank, self.pipeline[op.peer]
        if peer not in self.copies:
            self.copies[peer] = self.groups.transfer_copies(here, peer)
        source, target = (peer, here) if isinstance(op, Recv) else (here, peer)
        return self.tape.shared.rendezvous.join(
            ("pp", source, target, *op.key, self.run),
            "send",
            self.size,
            [(source + c, target + c) for c in self.copies[peer]],
            "pp",
            2,
            everywhere=self.everywhere,
        )
