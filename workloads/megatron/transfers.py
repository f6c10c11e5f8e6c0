"""What a pipeline rank exchanges with others: activations, and their gradients."""

from __future__ import annotations

from functools import cached_property

from prestep.workloads.exchanges import tensor
from prestep.workloads.megatron.elementwise import pass_over
from prestep.workloads.megatron.rank import Rank
from prestep.workloads.parallel.group import transfer
from prestep.workloads.schedules.runtime import Batch, Recv, Send, Wait

STREAM = "nccl pp"
ONE_STREAM = ("gpipe", "1f1b")


class Transfers:
    """Batches of sends and receives of one rank, each an event when it has ended."""

    run = 0  # of the schedule, which may run several times in a step

    def __init__(
        self, rank: Rank, of_torch: bool = False, unpacked: float = 0.0
    ) -> None:
        """``of_torch``: one communicator for all, on which every tensor-parallel rank sends all of an activation.

        ``unpacked``: bytes moved for each byte that is gathered of an activation, beyond the exchange.
        """
        self.rank, self.tape, self.of_torch = rank, rank.tape, of_torch
        self.unpacked = unpacked
        self.ended: dict[int, tuple[int, ...]] = {}
        self.peers: dict[int, tuple[int, int, list[int]]] = {}

    def post(self, batch: Batch) -> None:
        """Issues a batch behind the computation so far."""
        t = self.tape
        parts = [self._rendezvous(op) for op in batch.ops]
        stream = self._stream(batch)
        t.wait(t.record(), stream)
        t.cpu("p2p_batch")
        t.cpu("p2p_op", len(batch.ops))
        t.communicate(parts, stream, "send_recv")
        self.ended[batch.handle] = t.record(stream)

    def wait(self, op: Wait) -> None:
        """Computation waits for a batch; in old releases the host does too."""
        t = self.tape
        t.wait(self.ended[op.handle])
        if self.rank.o.p2p_sync or t.blocking:
            t.synchronize()

    def gather(self, times: int = 1) -> None:
        """What came from another stage in parts, one to each tensor-parallel rank, is gathered (over NVLink)."""
        if self._parts == 1:
            return
        stream = tensor.STREAM
        for _ in range(times):
            self.rank.tp.collective(
                self.tape, "all_gather", self._size, stream, in_place=True
            )
            self.tape.wait(self.tape.record(stream))
            if self.unpacked:
                pass_over(self.tape, int(self._size / 2), self.unpacked * self._size)

    @cached_property
    def _size(self) -> float:
        """Bytes of an activation between stages."""
        rows, samples, hidden = self.rank.model.inner
        return rows * samples * hidden * 2.0

    @cached_property
    def _parts(self) -> int:
        """Tensor-parallel ranks that each send a part of an activation that all of them have."""
        if self.rank.model.shard.sequence or self.of_torch:
            return 1
        scatters = self.rank.o.scatter_gather_tensors_in_pipeline
        return self.rank.grid.tp if scatters else 1

    def _rendezvous(self, op: Send | Recv) -> int:
        """Where an activation meets another stage; each tensor rank sends its part of it."""
        if op.peer not in self.peers:
            self.peers[op.peer] = self._peer(op.peer)
        here, peer, copies = self.peers[op.peer]
        ends = (peer, here) if isinstance(op, Recv) else (here, peer)
        key, size = (*op.key, self.run), self._size / self._parts
        return transfer(self.tape, *ends, key, size, copies, self._everywhere)

    def _peer(self, stage: int) -> tuple[int, int, list[int]]:
        """This rank, that of another stage, and the copies of what they exchange."""
        rank = self.rank
        here = rank.grid.rank(rank.replica, rank.stage, 0)
        peer = rank.grid.rank(rank.replica, stage, 0)
        return here, peer, rank.groups.transfer_copies(here, peer, rank.kind)

    @cached_property
    def _everywhere(self) -> int:
        return len(self.rank.kind.replicas) * self.rank.ranks

    def _stream(self, batch: Batch) -> str:
        """With overlap each peer and direction has its own communicator, so that none blocks another."""
        schedule = self.rank.s.parallel.schedule
        interleaved = schedule == "interleaved"
        in_chunks = len(self.rank.owner) > self.rank.grid.pp
        shared = schedule in ONE_STREAM or (interleaved and not in_chunks)
        if shared or self.of_torch or not self.rank.o.overlap_p2p_comm:
            return STREAM
        one = batch.ops[0]
        way = f"{STREAM} {'from' if isinstance(one, Recv) else 'to'} {one.what}"
        return way if interleaved else f"{way} {one.peer}"
