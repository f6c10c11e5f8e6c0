"""Models of configurations on Megatron-core: named, or written out with what their classes decide."""

from __future__ import annotations

from prestep.workloads.arguments import tokenizers
from prestep.workloads.recipes import _models
from prestep.workloads.recipes import _pipeline as _pipeline_cuts
from prestep.workloads.recipes._core import OFF
from prestep.workloads.recipes._documents import Document
from prestep.workloads.recipes._reading import Recipe, shown
from prestep.workloads.recipes._rules import written


def _virtual(draft: Recipe, document: Document) -> None:
    """Virtual stages by the layers of each, where the layers are known."""
    key, per = document.ended("num_layers_per_virtual_pipeline_stage")
    pp, layers = draft.get("parallel.pp", 1), _pipeline_cuts.layers_of(draft)
    if not key or per is None or pp == 1 or not layers:
        return
    per = draft.count(document, key, 1)
    if layers % (per * pp):
        expected = f"a divisor of {layers} layers over {pp} ranks"
        draft.wrong(document, key, per, expected)
    elif layers // (per * pp) > 1:
        draft.set("parallel.vpp", layers // (per * pp), key, document)
        draft.set("parallel.schedule", "interleaved", key, document)


def _shared(draft: Recipe, document: Document) -> None:
    """Shared experts are as wide as so many others."""
    key, width = document.ended("moe_shared_expert_intermediate_size")
    one = draft.get("model.moe_ffn") or draft.get("model.ffn")
    if key and isinstance(width, int) and width and one:
        if width % one:
            draft.wrong(document, key, width, f"a multiple of {one}")
        draft.set("model.shared_experts", width // one, key, document)


def _cuts(draft: Recipe, document: Document) -> None:
    """How the pipeline is cut, where the layers are known."""
    _virtual(draft, document)
    keys = [
        document.ended(f"num_layers_in_{end}_pipeline_stage")[0]
        for end in ("first", "last")
    ]
    first, last = (draft.count(document, key) if key else None for key in keys)
    said = keys[0] or keys[1]
    _pipeline_cuts.ends(draft, first, last, said, document.place(said))
    _pipeline_cuts.uneven(draft)


def _usual(draft: Recipe, document: Document) -> None:
    """Keys of a model that its class decides, where the recipe does not; and the vocabulary of its tokenizer."""
    made = str(document.get("model", "")).partition("(")[0].rpartition(".")[2]
    for key, value in _models.tables()["providers"].get(made, {}).items():
        if draft.get(f"model.{key}") is None:
            draft.set(f"model.{key}", value)
    keys = ("tokenizer.tokenizer_type", "tokenizer.tokenizer_model")
    kind, name = (str(document.get(key, "")) for key in keys)
    entries = tokenizers.vocabulary_of(kind, name)
    if draft.get("model.vocab") is None and entries is not None:
        draft.set("model.vocab", entries[0], keys[1], document)
        draft.assume(f"a vocabulary of {entries[0]:,}, which {entries[1]} has")


def _window(draft: Recipe, document: Document) -> None:
    """Tokens that attention looks back, of a model that is written out."""
    key, size = document.ended("window_size")
    skip, every = document.ended("window_attn_skip_freq")
    if not key or written(size) in OFF:
        return
    whole = isinstance(size, list) and len(size) == 2 and size[1] == 0
    if not whole or not isinstance(size[0], int) or not isinstance(every or 0, int):
        found = shown(size) if not skip else f"{shown(size)}, {shown(every)}"
        draft.wrong(
            document, key, found, "tokens to the left and 0, in every n-th layer"
        )
        return
    draft.set("model.window", size[0] + 1, key, document)
    if every:
        draft.set("model.window_every", every, skip, document)


def _further(draft: Recipe, document: Document) -> None:
    """Layers of multi-token prediction: attention and the model's feed-forward, which is what is simulated."""
    key, pattern = document.ended("mtp_hybrid_override_pattern")
    if not key or not draft.get("model.mtp_layers"):
        draft.drop("model.mtp_shared")
        return
    wanted = "*E" if draft.get("model.experts") or draft.get("model.name") else "*-"
    if pattern != wanted:
        what = f'layers of multi-token prediction other than "{wanted}"'
        draft.lose(document, key, shown(pattern), what)


def model(draft: Recipe, document: Document, names: list[str], said: str) -> None:
    """The model by one of the names in a call, where its own sizes are not written out."""
    where = document.place(said)
    for name in names:
        if ours := _models.model_named(name):
            draft.set("model.name", ours, said, where)
            _cuts(draft, document)
            return
    _further(draft, document)
    sizes = ("layers", "hidden", "heads")
    if all(draft.get(f"model.{key}") for key in sizes):
        _window(draft, document)
        _usual(draft, document)
        draft.set("model.kind", "transformer", said, where)
        hint = "--set model.vocab=N says it"
        draft.need("model.vocab", where, said, "no vocabulary", "its entries", hint)
        if draft.get("model.ffn") is None:
            draft.set("model.ffn", 4 * draft.get("model.hidden"))
        _shared(draft, document)
        _cuts(draft, document)
        return
    found = ", ".join(f'"{name}"' for name in names) or "nothing"
    _models.missing(draft, found, said, where)
