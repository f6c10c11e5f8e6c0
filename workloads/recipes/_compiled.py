"""Which framework stands for compiled blocks of plain PyTorch: pytorch-compiled, or Megatron's fused layers."""

from __future__ import annotations

from workloads.models.model import MODELS, read_model
from workloads.recipes._reading import Draft

#: What `prestep validate published` takes for torchtitan's compiled runs (validation/cases/published/setups.toml).
FUSED = {
    "attention": "flash2",
    "main_grads": "fp32",
    "cross_entropy_fusion": True,
    "vocab_multiple": 1,
    "recompute_early_stop": True,
}


def experts_of(draft: Draft) -> int:
    """Experts of the model, as far as it is known."""
    name = draft.get("model.name")
    if name:
        return read_model(MODELS / f"{name}.toml").experts or 0
    return int(draft.get("model.experts") or 0)


def choose(draft: Draft, compiled: bool, said: str, where: str) -> None:
    """Compiled blocks as such where they are simulated; split or float8 ones as Megatron's fused layers."""
    if not compiled:
        draft.set("training.framework", "pytorch-eager", said, where)
        draft.set("pytorch.attention", "flash2")
        draft.assume(
            "attention by FlashAttention 2, which PyTorch takes where it is told nothing else"
        )
        return
    fp8 = draft.get("training.precision") == "fp8"
    split = any(
        draft.get(f"parallel.{axis}", 1) > 1 for axis in ("tp", "cp", "pp", "ep")
    )
    if not (fp8 or split or experts_of(draft)):
        draft.set("training.framework", "pytorch-compiled", said, where)
        return
    draft.set("training.framework", "megatron", said, where)
    for key in [key for key in draft.settings if key.startswith("pytorch.")]:
        draft.drop(key)
    for key, value in FUSED.items():
        draft.set(f"megatron.{key}", value)
    what = "float8 products" if fp8 else "split blocks"
    draft.assume(
        f"compiled blocks with {what} count as Megatron's fused layers, as in `prestep validate published`"
    )
