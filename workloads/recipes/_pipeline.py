"""Batches and pipelines: as torchtitan and NeMo Automodel say them, and Megatron's cuts into stages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prestep.workloads.megatron.pipeline_layout import pipeline_layout
from prestep.workloads.models import hybrid
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._models import part
from prestep.workloads.recipes._reading import Recipe, shown


def batch(
    draft: Recipe,
    document: Document,
    local_key: str,
    global_key: str,
    size_key: str = "parallelism.pipeline_parallel_microbatch_size",
    usual: int = 8,
) -> None:
    """A rank's samples, cut into microbatches by a pipeline; the step's samples where they are said."""
    local = draft.count(document, local_key, usual)
    if document.get(local_key) is None:
        draft.assume(f"{local_key} is not said: {usual}, the trainer's default")
    size, pp = draft.count(document, size_key, 1), draft.get("parallel.pp", 1)
    micro = size if pp > 1 else local
    draft.set("training.micro_batch", micro, local_key, document)
    whole = draft.typed(document, global_key, "whole", -1)
    if whole > 0:
        draft.set("training.global_batch", whole, global_key, document)
    if pp > 1:
        if local % size:
            draft.wrong(
                document, local_key, local, f"a multiple of {size_key} = {size}"
            )
        elif whole <= 0:
            draft.set("training.microbatches", local // size, local_key, document)


#: Names of schedules in torch.distributed.pipelining -> schedule, stages of a rank.
SCHEDULES = {
    "1f1b": ("1f1b", 1),
    "gpipe": ("gpipe", 1),
    "interleaved1f1b": ("interleaved", 2),
    "interleavedzerobubble": ("zero-bubble", 2),
    "zbvzerobubble": ("zbv", 2),
    "dualpipev": ("dualpipe", 2),
}


def schedule(draft: Recipe, document: Document, key: str, layers_key: str) -> None:
    """The schedule and how many stages each rank has."""
    pp = draft.get("parallel.pp", 1)
    if pp == 1:
        return
    said = str(document.get(key, "1F1B"))
    known = SCHEDULES.get(said.lower())
    if known is None:
        names = ", ".join(SCHEDULES)
        draft.lose(document, key, shown(said), f"a schedule of {names}")
        return
    ours, stages = known
    per_stage, layers = draft.count(document, layers_key), layers_of(draft)
    if stages > 1 and per_stage and layers:
        stages = max(1, math.ceil(layers / (per_stage * pp)))
    draft.set("parallel.schedule", ours, key, document)
    draft.set("parallel.vpp", stages, layers_key, document)
    if layers and layers % (pp * stages):
        draft.set("parallel.uneven_stages", True)
        draft.assume(
            f"{layers} layers on {pp * stages} stages: the first ones hold one more"
        )


def layers_of(draft: Recipe) -> int:
    """Layers of the model, 0 where it is not known; those that the recipe says replace the model's own."""
    said = draft.get("model.layers") or part(draft, "layers")
    return int(said or len(part(draft, "layer_pattern") or ""))


def ends(
    draft: Recipe, first: int | None, last: int | None, said: str, where: str
) -> None:
    """Megatron's cut with a number of layers of its own for the first or the last rank; the others share the rest.

    A rank's layers are spread evenly over its virtual stages (megatron/core/transformer/transformer_block.py,
    get_num_layers_to_build).
    """
    pp, vpp = draft.get("parallel.pp", 1), draft.get("parallel.vpp", 1)
    letters = hybrid.letters_of_layer(str(part(draft, "layer_pattern") or ""))
    layers = layers_of(draft) // letters
    if (first is None and last is None) or pp == 1 or not layers:
        return
    others = pp - 2 + [first, last].count(None)
    rest = layers - (first or 0) - (last or 0)
    each = rest // max(1, others)
    ranks = [each] * pp
    ranks[0] = each if first is None else first
    ranks[-1] = each if last is None else last
    if sum(ranks) != layers or any(count < 0 or count % vpp for count in ranks):
        expected = f"stages that share the other {rest} of {layers} layers evenly over {others} ranks of {vpp}"
        draft.wrong(where, said, f"{ranks[0]} first, {ranks[-1]} last", expected)
        return
    layout = _layout([count * letters for count in ranks], vpp, predicting(draft))
    draft.set("megatron.pipeline_layout", layout, said, where)


def _layout(ranks: Sequence[int], vpp: int, predictions: int) -> str:
    """Megatron's words for a cut with so many layers a rank.

    Examples
    --------
    >>> _layout([2, 4], 2, 1)
    'Et|tt|t|ttmL'
    """
    stages = "|".join("t" * (layers // vpp) for _ in range(vpp) for layers in ranks)
    return f"E{stages}{'m' * predictions}L"


def predicting(draft: Recipe) -> int:
    """Layers of multi-token prediction of the model."""
    own = draft.get("model.mtp_layers")
    return int((part(draft, "mtp_layers") if own is None else own) or 0)


def of_layout(draft: Recipe) -> None:
    """Takes the virtual stages of a rank from a layout, where nothing else says them, as Megatron does."""
    setting = draft.settings.get("megatron.pipeline_layout")
    pp = draft.get("parallel.pp", 1)
    if setting is None or draft.get("parallel.vpp") is not None:
        return
    try:
        stages = len(pipeline_layout(setting.value).stages)
    except ValueError:
        return  # told of where the scenario is checked
    if stages % pp == 0 and stages > pp > 1:
        draft.set("parallel.vpp", stages // pp, setting.said, setting.where)
        draft.set("parallel.schedule", "interleaved", setting.said, setting.where)


def uneven(draft: Recipe) -> None:
    """Lets the first stages have a layer more where layers do not divide over stages, which trainers allow."""
    of_layout(draft)
    if draft.get("megatron.pipeline_layout"):
        return
    stages = draft.get("parallel.pp", 1) * draft.get("parallel.vpp", 1)
    ends = ("megatron.account_for_embedding", "megatron.account_for_loss")
    layers = layers_of(draft) + sum(bool(draft.get(key)) for key in ends)
    if layers and layers % stages:
        draft.set("parallel.uneven_stages", True)
        draft.assume(
            f"{layers} layers on {stages} stages: the first ones hold one more"
        )
