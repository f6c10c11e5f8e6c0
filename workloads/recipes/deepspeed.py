"""DeepSpeed's JSON: ZeRO stage, batch and number format; the model is another file's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prestep.workloads.recipes import _models
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Recipe, shown
from prestep.workloads.recipes._rules import rules, written

#: How people know such a recipe.
LOOKS = "JSON with zero_optimization or train_micro_batch_size_per_gpu"
RULES = Path(__file__).with_suffix(".toml")
OWN = {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}
WAYS = {0: "ddp", 1: "zero1", 2: "zero2", 3: "zero3"}
AUTO = "auto"
MEGATRONS = (
    "Megatron's layers under DeepSpeed's engine: steps of Hugging Face's modules, which are less fused, and of "
    "ZeRO-2 and 3 were 10 to 70 % longer when measured, those of ZeRO-3 up to five times as long; `prestep capture` "
    "takes the program itself"
)


def recognise(document: Document) -> bool:
    return document.kind == "json" and bool(OWN & document.sections())


def read(document: Document, beside: tuple[Document, ...] = ()) -> Recipe:
    """What the file says; "auto" is what the trainer says, or nobody."""
    draft = Recipe("deepspeed", str(document.path))
    apply(draft, document)
    settle_offload(draft)
    _batch(draft, document)
    _models.missing(draft, "nothing", "", str(document.path))
    _models.missing_length(draft, "", str(document.path))
    return draft


def apply(draft: Recipe, document: Document) -> None:
    """The engine: how states are sharded, and the number format."""
    draft.set("training.framework", "deepspeed")
    draft.set("training.precision", "bf16")
    draft.assume(MEGATRONS)
    draft.read(document, rules(RULES))
    _stage(draft, document)
    _format(draft, document)
    _offload(draft, document)


def said(document: Document, key: str) -> Any:
    """A value, unless the trainer decides it."""
    value = document.get(key)
    return None if value == AUTO else value


def _stage(draft: Recipe, document: Document) -> None:
    key = "zero_optimization.stage"
    stage = said(document, key)
    if stage is None:
        stage = 0
    if isinstance(stage, str) and stage.isdecimal():
        stage = int(stage)
    if not isinstance(stage, int) or stage not in WAYS:
        draft.wrong(document, key, shown(stage), "0, 1, 2 or 3")
        return
    draft.set("parallel.data_parallel", WAYS[stage], key, document)


def _format(draft: Recipe, document: Document) -> None:
    for key, ours in (
        ("fp16.enabled", "fp16"),
        ("bf16.enabled", "bf16"),
        ("bfloat16.enabled", "bf16"),
    ):
        if written(said(document, key)) == "true":
            draft.set("training.precision", ours, key, document)


OPTIMIZER, PARAM = (
    f"zero_optimization.offload_{what}" for what in ("optimizer", "param")
)
OUTSIDE = "parameters or optimizer outside the GPU"
ABSENT = ("none", "null")  # as a device that is not said


def _offload(draft: Recipe, document: Document) -> None:
    """ZeRO-Offload to the host's memory; what is simulated of it is known when the layers are (`settle_offload`)."""
    key = "zero_optimization.cpu_offload"
    devices = {
        one: written(document.get(f"{one}.device", "none"))
        for one in (OPTIMIZER, PARAM)
    }
    if written(document.get(key)) == "true":
        devices[OPTIMIZER] = "cpu"
    else:
        key = f"{OPTIMIZER}.device"
    outside = {one for one, device in devices.items() if device not in ABSENT}
    # Stages 1 and 2 keep whole parameters on the GPU, whatever is said of them.
    sharded = draft.get("parallel.data_parallel") == "zero3"
    if not outside:
        return
    if OPTIMIZER not in outside or any(devices[one] != "cpu" for one in outside):
        for one, device in devices.items():
            if device not in ABSENT:
                draft.lose(document, f"{one}.device", device, OUTSIDE)
        return
    kept = "parameters" if sharded and PARAM in outside else "optimizer"
    draft.set("parallel.offload", kept, key, document)
    pinned = f"{OPTIMIZER}.pin_memory"
    if written(document.get(pinned)) == "false":
        draft.set("parallel.offload_pinned", False, pinned, document)


def settle_offload(draft: Recipe) -> None:
    """Takes offloading back where the layers and the engine that were chosen have none."""
    setting = draft.settings.get("parallel.offload")
    if setting is None:
        return
    engine = draft.get("training.framework")
    way = draft.get("parallel.data_parallel")
    partitions = engine in ("deepspeed", "deepspeed-eager") and way in WAYS.values()
    if setting.value == "optimizer" and partitions:
        draft.assume(
            "the optimizer in the host's memory follows DeepSpeed's source (a guess: no such step was measured)"
        )
        return
    if setting.value == "parameters" and way == "fsdp" and engine == "pytorch-eager":
        draft.assume("offloaded ZeRO-3 counts as FSDP2's CPUOffloadPolicy (a guess)")
        return
    draft.drop("parallel.offload", "parallel.offload_pinned")
    draft.lose(setting.where, setting.said, "cpu", OUTSIDE)


def _batch(draft: Recipe, document: Document) -> None:
    """Two of three numbers decide the third; a file that leaves all to the trainer says nothing."""
    plain = Document(
        document.path,
        document.kind,
        {key: entry for key, entry in document.entries.items() if entry.value != AUTO},
    )
    micro, steps, whole = (
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "train_batch_size",
    )
    if plain.get(micro) is not None:
        draft.set("training.micro_batch", draft.count(plain, micro), micro, document)
    else:
        hint = "--set training.micro_batch=N says it"
        draft.need(
            "training.micro_batch",
            document,
            micro,
            shown(document.get(micro)),
            "samples of a rank",
            hint,
        )
    if plain.get(whole) is not None:
        draft.set("training.global_batch", draft.count(plain, whole), whole, document)
    elif plain.get(steps) is not None:
        draft.set("training.microbatches", draft.count(plain, steps), steps, document)
