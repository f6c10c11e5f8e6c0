"""One rank's training step, recorded on its tape: forward and backward passes of its model, then the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from prestep.sim.extras import lazily
from prestep.workloads.job import JobSpec
from prestep.workloads.job.layout import grad_accumulation_of, microbatches_of
from prestep.workloads.memory.account import Storage
from prestep.workloads.models.model import ModelSpec
from prestep.workloads.optimizer import optimizer
from prestep.workloads.parallel.groups import Groups
from prestep.workloads.precision import precision
from prestep.workloads.torch import aten
from prestep.workloads.torch.optimizer_step import OptimizerStep
from prestep.workloads.torch.recorder import Shared
from prestep.workloads.torch.run_block import RunBlock
from prestep.workloads.torch.tape import Tape, Tensor
from prestep.workloads.torch.wrapped_model import WrappedModel

with lazily():
    from prestep.workloads import schedules
    from prestep.workloads.parallel import pipeline
    from prestep.workloads.schedules import runtime
    from prestep.workloads.sharding import course as courses
    from prestep.workloads.torch import amp

#: Bytes of cuBLAS's workspace on Hopper and Blackwell, where nobody says the GPU (generations/*.toml, workspace).
CUBLAS_WORKSPACE = 32 * 2.0**20
#: Threads that call cuBLAS, each with a handle of its own: the program's and backward's.
HANDLES = 2


class RankStep:
    """Builds the model of one rank and records one steady-state training step of it.

    Parameters
    ----------
    job : JobSpec
    model : ModelSpec
    groups : Groups
        Where the ranks lie, and whom each meets.
    tape : Tape
        The tape of the rank.
    run_block : RunBlock, optional
        Runs a block where its own operators do not.
    workspace : float
        Bytes that cuBLAS takes for each of its handles.
    """

    def __init__(
        self,
        job: JobSpec,
        model: ModelSpec,
        groups: Groups,
        tape: Tape,
        run_block: RunBlock | None = None,
        workspace: float = CUBLAS_WORKSPACE,
    ) -> None:
        self.job, self.tape, self.groups = job, tape, groups
        self.workspace = HANDLES * workspace
        self.run_block = run_block
        tape.choices = job.pytorch
        numbers = precision(job.training.precision)
        tape.products, tape.itemsize = numbers.products, numbers.parameter
        if numbers.wide:
            tape.plain = numbers.name
        training = job.training
        tape.packed, tape.deterministic = training.packed, training.deterministic
        if job.pytorch.bf16_layers:
            tape.last_quantized = model.layers - job.pytorch.bf16_layers - 1
        self.stage = groups.grid.where(tape.rank)[1]
        self.model = WrappedModel(job, model, tape, groups, run_block)

    def record(self) -> None:
        """One training step in steady state (buckets rebuilt, optimizer state there)."""
        t, model = self.tape, self.model
        t.cpu("graph_launch")
        workspace = Storage(t.memory, self.workspace, "workspace")
        run = self.build()
        optimizer = self._optimizer()
        self.optimizer_state = optimizer.state(model.updated_parameters())
        t.memory.by_update = [state.block for state in self.optimizer_state]
        t.memory.in_blocks = True
        t.memory.expandable = self.job.pytorch.expandable_segments
        if not self.job.training.set_to_none:
            model.keep_gradients()
        t.memory.reset_peak()
        run()
        model.reduce_gradients()
        t.phase, t.layer = 2, -1
        t.memory.begin_update()
        stored = model.stored_parameters()
        updated = model.updated_parameters()
        if updated:
            optimizer.update(updated)
        model.share_updates()
        model.find_scales()
        t.cpu("zero_grad")
        model.zero_gradients(stored)
        t.memory.end_step()
        del workspace

    def build(self) -> Callable[[], None]:
        """Builds what this rank has of the model; returns what runs the step's microbatches on it."""
        return self._pipeline() if self.job.parallel.pp > 1 else self._plain()

    def _optimizer(self) -> OptimizerStep:
        rule = optimizer(self.job.training.optimizer)
        tensor = self.model.group("tp") if self.job.parallel.tp > 1 else None
        sharded = bool(self.model.sharded) or tensor is not None
        shards = [unit.part.mesh.group for unit in self.model.sharded[:1]]
        parts = (*shards, *([] if tensor is None else [tensor]))
        scales = precision(self.job.training.precision).scaled_loss
        return OptimizerStep(
            self.tape,
            rule,
            self.job.pytorch,
            sharded,
            amp.LossScaler(parts) if scales else None,
            shards[0] if shards else None,
            tensor,
            self.model.host,
            parts,
        )

    # -- without a pipeline -----------------------------------------------------------------------
    def _plain(self) -> Callable[[], None]:
        """Builds the whole model; what runs the step's microbatches on it."""
        forward = self.model.whole()
        if self.model.partitions is not None and self.model.partitions.stage == 3:
            self.model.partitions.follow(self._course())
        microbatches = grad_accumulation_of(self.job)

        def run() -> None:
            for microbatch in range(microbatches):
                self.tape.microbatch = microbatch
                self.model.reduce_now(microbatch == microbatches - 1)
                self._forward_backward(forward)

        return run

    def _course(self) -> list[list[int]]:
        """Parameters of the modules in the order of a microbatch, which ZeRO 3 records in the first step."""
        t, whole = self.tape, replace(self.job.parallel, data_parallel="none")
        first = Tape(t.rank, Shared(), t.costs)
        course = first.hooks = courses.Course(first)
        step = RankStep(
            replace(self.job, parallel=whole),
            self.model.spec,
            self.groups,
            first,
            self.run_block,
        )
        step._forward_backward(step.model.whole())
        return course.numbered(step.model.parameters)

    def _forward_backward(self, forward: Callable[[], Tensor]) -> None:
        t = self.tape
        t.phase = 0
        t.cpu("step_python")
        self.model.before_forward()
        loss = forward()
        t.phase = 1
        if precision(self.job.training.precision).scaled_loss:
            amp.scale(t)
        t.cpu("backward_call")
        t.backward(loss, aten.ones_like(t, loss))
        del loss
        self.model.after_backward()

    # -- with a pipeline ----------------------------------------------------------------------------
    def _pipeline(self) -> Callable[[], None]:
        """Builds this rank's stages; what runs the schedule on them."""
        t, par = self.tape, self.job.parallel
        runs = grad_accumulation_of(self.job)
        microbatches = microbatches_of(self.job) // runs
        module, chunks = schedules.checked(
            par.schedule, par.pp, microbatches, par.vpp if par.vpp > 1 else None
        )
        owner = schedules.rank_of_stages(module.PLACEMENT, par.pp, chunks)
        pipe = pipeline.Pipeline(
            t,
            self._stages(owner),
            self.groups,
            len(owner) - 1,
            self._activation(),
            microbatches,
            runs,
            self.model.loss,
        )
        ops = runtime.operations(par.schedule, par.pp, microbatches, chunks, hooks=True)
        mine = ops[self.stage]

        def run() -> None:
            for _ in range(runs):
                t.cpu("step_python")
                pipe.run(mine)

        return run

    def _activation(self) -> tuple[int, int, int]:
        """Shape of the activation between stages: (micro batch, sequence, hidden)."""
        training, par = self.job.training, self.job.parallel
        spread = par.cp * (par.tp if par.sequence_parallel else 1)
        return training.micro_batch, training.seq_len // spread, self.model.spec.hidden

    def _stages(self, owner: Sequence[int]) -> dict[int, pipeline.Stage]:
        """The stages of this rank by index; `owner` is the pipeline rank of every stage."""
        cuts = pipeline.layers_of_stages(self.model.spec.layers, len(owner))
        return {
            index: self.model.stage(index, cuts)
            for index, rank in enumerate(owner)
            if rank == self.stage
        }
