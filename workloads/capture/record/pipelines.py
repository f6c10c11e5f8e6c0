"""Stages of a pipeline tell each other the shapes of what they send: forward, and since PyTorch 2.13 backward too."""

from __future__ import annotations

import functools
from typing import Any

from torch.distributed.pipelining import stage


def install() -> None:
    """A stage that was not run yet answers backward by what PyTorch derives from this stage's own outputs."""
    if hasattr(stage, "_StageBackwardMeta"):
        of_stage = stage.PipelineStage
        of_stage._recv_meta = _answering(of_stage._recv_meta)


def _answering(receive: Any) -> Any:
    @functools.wraps(receive)
    def received(own: Any, src_stage: int) -> Any:
        meta = receive(own, src_stage)
        # Where nobody ran the next stage, the exchange gives what this rank sent last: shapes of its outputs.
        if src_stage > own.stage_index and isinstance(meta, stage._StageForwardMeta):
            gradients = stage._derive_grad_metas(own._stage_meta.outputs)
            return stage._StageBackwardMeta(backward_metas=gradients)
        return meta

    return received
