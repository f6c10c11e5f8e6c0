"""A recorded step as a graph of operations: the same value that lowering a model gives."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import OpGraph
from prestep.workloads.capture.compiled_calls import CompiledCalls, compiler_of
from prestep.workloads.capture.groups import Groups, alike
from prestep.workloads.capture.memory import DeviceMemory, handles
from prestep.workloads.capture.recording import Event, RankRecording, Recording
from prestep.workloads.capture.summary import model_flops, reads_of
from prestep.workloads.capture.tables import Tables
from prestep.workloads.fusion.compile import Compiler
from prestep.workloads.host_work import THREAD, extern_work, host_work
from prestep.workloads.lowered import Layout, Lowered
from prestep.workloads.operators.scratch import scratch
from prestep.workloads.torch.recorder import PHASES, Recorder, Shared

FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION = range(len(PHASES))

#: The axis of transfers between two ranks: stages of a pipeline, or parts of a sequence.
POINT_TO_POINT = "p2p"
#: Operations that update weights, by the beginning of their names.
UPDATES = ("aten._fused_", "aten._foreach_", "aten.addcdiv", "aten.lerp")


def lower(
    recording: Recording,
    costs: Mapping[str, float],
    host_factor: float = 1.0,
    marks: Sequence[Hashable] = (),
    workspace: float = 0.0,
    stated: Mapping[str, float] | None = None,
    host_bandwidth: float = THREAD,
) -> Lowered:
    """The step of every recorded rank.

    Parameters
    ----------
    costs
        Seconds of host time by what the host does: frameworks/pytorch-eager.toml.
    host_factor
        Time of this host over that of the one on which the costs were fitted.
    marks
        What tells GPUs apart (`Lowered.made_for`).
    workspace
        Bytes that cuBLAS takes for each of its handles.
    stated
        Seconds of operators ("mylib::op"), in place of what is known of their kernels.
    host_bandwidth
        Bytes a second that a rank's host moves where it computes itself.
    """
    scaled = {name: time * host_factor for name, time in costs.items()}
    scaled["host_byte"] = 1 / host_bandwidth
    compiler = compiler_of(recording.operations, stated or {})
    shared, programs = Shared(), {}
    for rank in recording.ranks:
        recorder = Recorder(rank.rank, shared, scaled)
        programs[rank.rank] = _RankProgram(
            rank, recording, compiler, recorder, workspace
        )
        programs[rank.rank].replay()
    return Lowered(
        _graph(recording, shared, programs),
        {rank: p.recorder.memory for rank, p in programs.items()},
        {rank: p.recorder.counts for rank, p in programs.items()},
        recording.parameters,
        _layout(recording),
        (host_factor, marks),
        model_flops=model_flops(recording, compiler.kernels),
        reads=reads_of(recording),
        launch=scaled["launch"],
    )


def _layout(recording: Recording) -> Layout:
    """Ranks that send to each other are stages where they do different work; none waits for the others' slowest GPU."""
    ranks, world = recording.ranks, recording.world
    work = {
        tuple(e.values["operation"] for e in rank.events if e.kind == "operate")
        for rank in ranks
    }
    if len(work) == 1 or world % len(ranks):
        return Layout(world, 1, 1)
    near = ranks[1].rank - ranks[0].rank == 1
    order = ("tp", "pp", "dp") if near else ("tp", "dp", "pp")
    return Layout(world // len(ranks), len(ranks), 1, order)


def _graph(
    recording: Recording, shared: Shared, programs: Mapping[int, _RankProgram]
) -> OpGraph:
    rows = tuple(program.recorder.program() for program in programs.values())
    graph = shared.graph(rows, {r.rank: r.represents for r in recording.ranks})
    streams = list(shared.streams)
    if "compute" not in streams and streams:
        # A program that keeps to a stream of its own: its kernels are the step's all the same.
        used = np.bincount(np.concatenate([each.stream for each in rows]))
        streams[int(used.argmax())] = "compute"
    return replace(graph, streams=tuple(streams))


def _represented(recording: Recording) -> dict[int, int]:
    """The rank that was recorded for each rank of the world."""
    return {rank: each.rank for each in recording.ranks for rank in each.represents}


class _RankProgram:
    """Plays the events of a rank once more, into the columns of its program."""

    groups: dict[tuple[int, ...], tuple[Groups, int]]
    recorded: dict[int, tuple[int, ...]]  # CUDA events, by number
    communicated: dict[int, tuple[int, ...]]  # ends of communications
    in_place: set[int]  # communications whose inputs lie in their outputs
    sequence: dict[Hashable, int]  # communications of a kind so far
    batch: dict[int, int] | None  # transfers asked for at once

    def __init__(
        self,
        rank: RankRecording,
        recording: Recording,
        compiler: Compiler,
        recorder: Recorder,
        workspace: float,
    ) -> None:
        self.rank, self.recording, self.kernels = rank, recording, compiler.kernels
        self.work = tuple(map(host_work, recording.operations, self.kernels))
        self.recorder = recorder
        self.simulated = frozenset(each.rank for each in recording.ranks)
        self.represented = _represented(recording)
        self.groups, self.recorded, self.communicated = {}, {}, {}
        self.in_place = set()
        self.sequence, self.batch, self.going_back = {}, None, False
        self.asked_on = "compute"  # the stream that a communication follows
        self.calls = CompiledCalls(rank, compiler)
        self.residence = self.calls.residence
        self.in_line = _in_line(self.calls.events)
        self.tables = Tables.of_rank(rank, recording)
        held = handles(self.rank, self.kernels)
        self.memory = DeviceMemory(rank, recorder.memory, held, workspace)

    def replay(self) -> None:
        for event in self.calls.events:
            self._host(event)
            # A method for each kind of event, by its name.
            getattr(self, f"play_{event.kind}")(event.values)
        self.memory.memory.end_step()

    def _host(self, event: Event) -> None:
        """Python before the event."""
        self.recorder.cpu("python_call", event.calls)

    def play_operate(self, values: Mapping[str, Any]) -> None:
        number, recorder = values["operation"], self.recorder
        operation = self.recording.operations[number]
        recorder.phase = _phase(operation.name, values["backward"])
        recorder.spend(self.work[number])
        for kernel in self.tables.launched(operation, self.kernels[number]):
            recorder.launch(kernel, _stream(values["stream"]), operation.name)
        if size := scratch(operation):
            self.memory.pass_through(size, values["stream"])

    # -- compiled functions -------------------------------------------------------------------
    def play_region(self, values: Mapping[str, Any]) -> None:
        """A call of a compiled function, or its backward."""
        self.going_back = bool(values["backward"])
        way = "backward" if self.going_back else "forward"
        self.recorder.cpu(f"compiled_{way}")
        self.residence.begin(values["number"], self.going_back)

    def play_region_end(self, values: Mapping[str, Any]) -> None:
        self._give_back(self.residence.end(values["number"], self.going_back))

    def play_piece(self, values: Mapping[str, Any]) -> None:
        """The kernels of compiled operations, one after the other, with the memory that comes and goes."""
        recorder, number, stream = self.recorder, values["number"], values["stream"]
        recorder.phase = BACKWARD if values["backward"] else FORWARD
        with recorder.launching_by("compiled_launch"):
            for issue in self.calls.issues(values):
                over, fresh = self.residence.written(number, issue)
                self._give_back(over)
                for storage, size in fresh.items():
                    self.memory.take(storage, size, stream)
                recorder.spend(extern_work(issue.kernel, issue.name))
                recorder.launch(issue.kernel, _stream(stream), issue.name)
                self._give_back(self.residence.dropped(number, issue))

    def _give_back(self, storages: Iterable[int]) -> None:
        for storage in storages:
            self.memory.memory.give_back(storage)

    # -- communication ------------------------------------------------------------------------
    def play_in_place(self, values: Mapping[str, Any]) -> None:
        self.in_place.add(values["number"])

    def play_communicate(self, values: Mapping[str, Any]) -> None:
        recorder = self.recorder
        recorder.phase = COMMUNICATION
        group, kind = values["group"], values["kind"]
        recorder.cpu("p2p_op" if kind in ("send", "recv") else "collective")
        if kind in ("send", "recv") and self.batch is None:
            recorder.cpu("p2p_batch")  # it is alone in one
        self.asked_on = _stream(values["stream"])
        members = self.recording.groups[group]
        if len(members) == 1:
            self.communicated[values["number"]] = recorder.record(self.asked_on)
            return
        part = self._joined(values, kind, members)
        if self.batch is not None:
            self.batch[values["number"]] = part
            return
        stream = f"nccl {group}"
        if values["number"] in self.in_line:
            stream = self.asked_on
        elif kind in ("send", "recv"):
            # Every pair of ranks has a communicator of its own, unless transfers are batched.
            stream = f"{stream} {members[values['peer']]}"
        self._issue({values["number"]: part}, stream, kind)

    def _issue(self, parts: Mapping[int, int], stream: str, name: str) -> None:
        """One launch that takes part in all of ``parts``, after what the stream that asked for it has now."""
        recorder = self.recorder
        recorder.wait(recorder.record(self.asked_on), stream)
        recorder.communicate(parts.values(), stream, name)
        end = recorder.record(stream)
        self.communicated.update(dict.fromkeys(parts, end))

    def play_batch(self, _: Mapping[str, Any]) -> None:
        self.batch = {}

    def play_batch_end(self, _: Mapping[str, Any]) -> None:
        batch, self.batch = self.batch, None
        self.recorder.cpu("p2p_batch")
        if batch:
            self._issue(batch, "nccl batch", "send and receive")

    def _joined(
        self, values: Mapping[str, Any], kind: str, members: tuple[int, ...]
    ) -> int:
        if kind in ("send", "recv"):
            return self._transfer(values, kind, members)
        groups, arrivals = self._groups(members)
        # Groups of other names may have the same ranks: what all of them do alike is counted together.
        same = (groups, kind, values["bytes"])
        key = (*same, self._next(same))
        return self.recorder.shared.rendezvous.join(
            key,
            kind,
            float(values["bytes"]),
            groups,
            self.recording.axis(values["group"]),
            arrivals,
            values["number"] in self.in_place,
        )

    def _groups(self, members: tuple[int, ...]) -> tuple[Groups, int]:
        """The group with its like on other ranks, and how many of all these ranks are simulated."""
        if members not in self.groups:
            groups = alike(members, self.recording.world, self.represented)
            ranks = {rank for group in groups for rank in group}
            self.groups[members] = groups, len(self.simulated & ranks)
        return self.groups[members]

    def _transfer(
        self, values: Mapping[str, Any], kind: str, members: tuple[int, ...]
    ) -> int:
        me, peer = self.rank.rank, members[values["peer"]]
        sender, receiver = (me, peer) if kind == "send" else (peer, me)
        sequence = self._next((sender, receiver, values["tag"]))
        pairs = tuple(
            (sender + shift, receiver + shift)
            for shift in (r - me for r in self.rank.represents)
        )
        arrivals = sum(1 for rank in (sender, receiver) if rank in self.simulated)
        return self.recorder.shared.rendezvous.join(
            ("p2p", sender, receiver, values["tag"], sequence),
            "send",
            float(values["bytes"]),
            pairs,
            POINT_TO_POINT,
            arrivals,
        )

    def _next(self, key: Hashable) -> int:
        self.sequence[key] = self.sequence.get(key, 0) + 1
        return self.sequence[key]

    def play_wait_collective(self, values: Mapping[str, Any]) -> None:
        self.recorder.wait(
            self.communicated.get(values["number"], ()), _stream(values["stream"])
        )

    # -- events ----------------------------------------------------------------------------------
    def play_record(self, values: Mapping[str, Any]) -> None:
        self.recorder.cpu("event")
        self.recorded[values["event"]] = self.recorder.record(_stream(values["stream"]))

    def play_wait(self, values: Mapping[str, Any]) -> None:
        self.recorder.cpu("event")
        self.recorder.wait(
            self.recorded.get(values["event"], ()), _stream(values["stream"])
        )

    def play_host_waits_event(self, values: Mapping[str, Any]) -> None:
        self.recorder.synchronize(event=self.recorded.get(values["event"], ()))

    def play_host_waits_stream(self, values: Mapping[str, Any]) -> None:
        self.recorder.synchronize(_stream(values["stream"]))

    def play_host_waits_all(self, _: Mapping[str, Any]) -> None:
        for stream in list(self.recorder.shared.streams):
            if stream != "host":
                self.recorder.synchronize(stream)

    play_barrier = play_host_waits_all

    def play_read(self, values: Mapping[str, Any]) -> None:
        recorder, stream = self.recorder, _stream(values["stream"])
        recorder.phase = FORWARD
        recorder.launch(Kernel("copy_h2d", (8,), bytes=8.0), stream, "read by the host")
        recorder.synchronize(stream)

    play_waits_for_copy = play_host_waits_stream

    def play_checkpoint(self, values: Mapping[str, Any]) -> None:
        again = "_backward" if values["backward"] else ""
        self.recorder.cpu(f"checkpoint{again}", values["number"])

    def play_saved(self, values: Mapping[str, Any]) -> None:
        again = "_again" if values["backward"] else ""
        self.recorder.cpu(f"saved_tensor{again}", values["number"])

    def play_ddp(self, values: Mapping[str, Any]) -> None:
        """Charges the host for forward passes of DistributedDataParallel, whose C++ then prepares for gradients."""
        self.recorder.cpu("ddp_forward", values["number"])

    def play_dtensor(self, values: Mapping[str, Any]) -> None:
        """Charges the host for what C++ does around an operation of DTensors, beside the calls of Python."""
        self.recorder.cpu("dtensor_operation", values["number"])

    def play_host_computes(self, values: Mapping[str, Any]) -> None:
        self.recorder.cpu("host_byte", values["bytes"])

    def play_replay(self, _: Mapping[str, Any]) -> None:
        self.recorder.cpu("graph_launch")
        self.recorder.captured = True

    def play_replay_end(self, _: Mapping[str, Any]) -> None:
        self.recorder.captured = False

    # -- memory ----------------------------------------------------------------------------------
    def play_allocate(self, values: Mapping[str, Any]) -> None:
        storage, size = values["storage"], values["bytes"]
        if self.residence.takes(storage, size):
            self.memory.take(storage, size, values["stream"])

    def play_free(self, values: Mapping[str, Any]) -> None:
        self._give_back(self.residence.gives_back(values["storage"]))


def _in_line(events: Sequence[Event]) -> frozenset[int]:
    """Communications that the stream which asks for them waits for at once: NCCL runs them in that stream.

    PyTorch does so since 2.8 where a program does not ask for `async_op`; so does what FSDP asks for on streams of its
    own. All others run on a stream of their group, one after the other.
    """
    told = [event for event in events if event.kind not in ("allocate", "free")]
    return frozenset(
        asked.values["number"]
        for asked, then in pairwise(told)
        if asked.kind == "communicate"
        and asked.values["kind"] not in ("send", "recv")
        and then.kind == "wait_collective"
        and then.values["number"] == asked.values["number"]
        and then.values["stream"] == asked.values["stream"]
    )


def _stream(number: int) -> str:
    return f"stream {number}" if number else "compute"


def _phase(name: str, backward: int) -> int:
    """Returns the phase of an operation; one that a checkpointed layer runs again (`backward` 2) is forward."""
    if backward == BACKWARD:
        return BACKWARD
    return OPTIMIZER if name.startswith(UPDATES) else FORWARD
