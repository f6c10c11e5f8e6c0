"""Liger's kernels in recipes of Hugging Face's trainers: one switch for what a model has, or one for each part."""

from __future__ import annotations

from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._models import part
from prestep.workloads.recipes._reading import Draft

#: One switch for all: transformers', TRL's, and LLaMA-Factory's.
WHOLE = ("use_liger_kernel", "use_liger", "enable_liger_kernel")
#: What it replaces where no configuration says otherwise (liger_kernel/transformers/monkey_patch.py).
USUAL = ("rope", "rms_norm", "glu", "fused_linear_cross_entropy")
#: Keys of transformers' liger_kernel_config, and of axolotl's plug-in, by part.
PARTS = {
    "rope": ("liger_kernel_config.rope", "liger_rope"),
    "rms_norm": ("liger_kernel_config.rms_norm", "liger_rms_norm"),
    "glu": ("liger_kernel_config.swiglu", "liger_glu_activation", "liger_swiglu"),
    "cross_entropy": ("liger_kernel_config.cross_entropy", "liger_cross_entropy"),
    "fused_linear_cross_entropy": (
        "liger_kernel_config.fused_linear_cross_entropy",
        "liger_fused_linear_cross_entropy",
    ),
}
#: axolotl's, which replaces layer norms.
LAYER_NORMS = "liger_layer_norm"


def liger(draft: Draft, said: Document) -> None:
    """The parts that are Liger's, where the layers are transformers'; elsewhere they are not simulated."""
    parts = _parts(draft, said)
    layer_norms = part(draft, "norm") == "layer"
    if layer_norms and draft.is_on(said, LAYER_NORMS):
        what = "layer norms by Liger"
        draft.lose(said, LAYER_NORMS, "true", what)
    if not parts:
        return
    key = next(iter(parts.values()))
    if layer_norms:
        draft.assume(f"{key}: Liger has nothing for models with layer norms (GPT-2)")
        return
    split = any(draft.get(f"parallel.{axis}", 1) > 1 for axis in ("tp", "cp", "ep"))
    if draft.get("pytorch.modules") != "transformers" or split:
        what = (
            "Liger's kernels beside other layers than transformers', or parts of them"
        )
        draft.lose(said, key, "true", what)
        return
    if "fused_linear_cross_entropy" in parts:
        parts.pop("cross_entropy", None)
    draft.set("pytorch.liger", tuple(parts), key, said)


def _parts(draft: Draft, said: Document) -> dict[str, str]:
    """Parts of a model that are Liger's, with the key that says so."""
    whole = next((key for key in WHOLE if draft.is_on(said, key)), "")
    found = dict.fromkeys(USUAL, whole) if whole else {}
    for name, keys in PARTS.items():
        for key in keys:
            on = draft.typed(said, key, "truth")
            if on:
                found[name] = key
            elif on is False:
                found.pop(name, None)
    return found
