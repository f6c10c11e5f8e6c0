"""Sizes of torchtitan's models as the checkout beside a recipe writes them out, for those that no bundled model has."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError
from prestep.workloads.recipes import _documents, _models
from prestep.workloads.recipes._documents import Document, Source
from prestep.workloads.recipes._python import flat
from prestep.workloads.recipes._reader import Reader
from prestep.workloads.recipes._reading import Recipe, shown
from prestep.workloads.recipes._values import Made

#: The parts of a vision transformer's layer whose widths are its own: attention's four, the feed-forward's two.
ATTENTION, FEED_FORWARD = 4, 2
#: Where arguments of a model stand: its own, those of its layers, or of its experts.
PLACES = ("", "layers", "moe_args", "model_config")
#: The flavor that torchtitan's tests train; also the default of a file without a flavor.
TESTED = "debugmodel"
#: Where models lie, below torchtitan.
FOLDERS = ("models", "experiments")


def choose(draft: Recipe, document: Document) -> None:
    """Decides the model: a bundled one by its name, or one that the checkout writes out.

    Raises
    ------
    InputError
        For a model of layers that are not simulated.
    """
    name = document.get("model.name", "llama3")
    flavor = document.get("model.flavor", TESTED)
    source, where = "model.flavor", document.place("model.flavor")
    if reason := _models.tables()["titan"]["refused"].get(name):
        expected = "layers that are simulated"
        raise InputError.of(where, source, f"{name}: {flavor}", expected, reason)
    base = document.get("model.hf_model") or document.get("hf_transformers.model", "")
    bundled = map(_models.model_named, (f"{name}-{flavor}", str(flavor), str(base)))
    ours = next(filter(None, bundled), "")
    sizes = _written(document.path, name, flavor)
    if ours:
        draft.set("model.name", ours, source, where)
    elif not sizes:
        _models.missing(draft, f'"{name}" {shown(flavor)}', source, where)
        return
    own = _keys(name, sizes, whole=not ours) if base or not ours else {}
    for key, value in own.items():
        draft.set(f"model.{key}", value, source, where)
    if layers := document.get("model.num_mtp_layers"):
        draft.set("model.mtp_layers", layers, source, where)
    _tower(draft, sizes)


def _written(recipe: Path, name: str, flavor: object) -> dict[str, Any]:
    """Arguments of the flavor's builder, by the names that they have in the checkout's file."""
    places = (Source(f"torchtitan.{folder}.{name}", 0, "") for folder in FOLDERS)
    files_of_model = (_documents.file_of(recipe, place) for place in places)
    file = next(filter(None, files_of_model), None)
    if flavor == TESTED and name in _models.tables()["titan"]["alone"]:
        return dict(_models.tables()["titan"]["alone"][name])
    if file is None or name not in _models.tables()["titan"]["families"]:
        return {}
    reader = Reader(file, _documents.text_of(file))
    for node in reader.assigned.values():
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == flavor:
                made = reader.result(value)
                entries = dict(flat(made, "")) if isinstance(made, Made) else {}
                return {name: entry.value for name, entry in entries.items()}
    return {}


def _keys(family: str, written: dict[str, Any], whole: bool) -> dict[str, Any]:
    """Keys of [model]: the sizes, and of a ``whole`` model, which no bundled one stands for, the family's."""
    traits = dict(_models.tables()["titan"]["families"].get(family, {}))
    pattern, names = traits.pop("pattern", ""), _models.tables()["titan"]["sizes"]
    own = {
        name.rpartition(".")[2]: value
        for name, value in written.items()
        if name.rpartition(".")[0] in PLACES and isinstance(value, int | float)
    }
    sizes: dict[str, Any] = {
        ours: own[theirs] for theirs, ours in names.items() if own.get(theirs)
    }
    if not whole:
        return sizes
    if "num_experts" in own and "ffn" in sizes:
        sizes.setdefault("moe_ffn", sizes["ffn"])
    if "shared_expert_hidden_dim" in own:
        sizes["shared_experts"] = own["shared_expert_hidden_dim"] // sizes["moe_ffn"]
    if "moe_ffn" in sizes:
        sizes.setdefault("ffn", sizes["moe_ffn"])
    if pattern:
        part = "E" if "experts" in sizes else "-"
        mixers = pattern * -(-sizes.pop("layers") // len(pattern))
        sizes["layer_pattern"] = "".join(f"{one}{part}" for one in mixers)
    return {"kind": "transformer"} | traits | sizes


def _tower(draft: Recipe, written: dict[str, Any]) -> None:
    """Tells how large the part is that sees, which is not simulated."""
    prefix = "vision_encoder."
    own = {
        name.removeprefix(prefix): value
        for name, value in written.items()
        if name.startswith(prefix)
    }
    width, inner, layers = (own.get(name) for name in ("dim", "ffn_dim", "num_layers"))
    if width and inner and layers:
        weights = layers * width * (ATTENTION * width + FEED_FORWARD * inner)
        draft.leave_out_tower(weights)
