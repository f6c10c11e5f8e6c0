"""Models as recipes name them: a name that is known here, or a config.json beside the recipe."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.workloads.job.model import Model
from prestep.workloads.models.model import MODELS, read_model
from prestep.workloads.recipes._reading import Recipe, Source

FILE = Path(__file__).with_name("_models.toml")


@cache
def tables() -> dict[str, Any]:
    """Returns the tables of `_models.toml`."""
    return files.toml(FILE.read_text(encoding="utf-8"))


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    table = tables()["models"]
    return tuple((re.compile(pattern), name) for pattern, name in table.items())


def model_named(name: str) -> str:
    """The bundled model that a recipe's name means; "" where none is known."""
    short = name.strip().rstrip("/").rpartition("/")[2].lower()
    return next((ours for one, ours in _patterns() if one.fullmatch(short)), "")


def bridge_of(draft: Recipe) -> dict[str, Any]:
    """What Megatron-Bridge's class of the model that a recipe names sets where the recipe says nothing."""
    made: dict[str, Any] = {}
    for pattern, keys in tables()["bridges"].items():
        made |= keys if re.fullmatch(pattern, draft.get("model.name") or "") else {}
    return made


def bundled(draft: Recipe) -> Model | None:
    """The bundled model that a recipe names."""
    name = draft.get("model.name")
    return read_model(MODELS / f"{name}.toml") if name else None


def part(draft: Recipe, key: str) -> Any:
    """A key of the model: the bundled one's where the recipe names one, else what the recipe says."""
    model = bundled(draft)
    return draft.get(f"model.{key}") if model is None else getattr(model, key)


def choose(draft: Recipe, name: object, said: str, where: str, folder: Path) -> None:
    """Decides the model by its name, or by the config.json in the folder that the name is."""
    if not isinstance(name, str) or not name:
        draft.wrong(where, said, name, "the name of a model")
        return
    beside = folder / name
    config = beside / "config.json" if beside.is_dir() else beside
    if config.suffix == ".json" and config.is_file():
        draft.set(
            "model.file",
            name if config == beside else f"{name}/config.json",
            said,
            where,
        )
    elif ours := model_named(name):
        draft.set("model.name", ours, said, where)
    else:
        missing(draft, f'"{name}"', said, where)


def missing(draft: Recipe, found: str, said: str, where: str) -> None:
    """Notes that nobody knows which model it is, or what the layers of its family have that is not simulated."""
    from prestep.workloads.models.families import refused  # few recipes need them

    name = re.sub(r"[-_.]", "", found.lower())
    unlike = {
        kind.partition("_")[0]: what
        for kind, what in refused().items()
        if kind.partition("_")[0] in name
    }
    hint = "--set model.name=NAME (`prestep list models`), or model.file=config.json, says which"
    if unlike:
        family = max(unlike, key=len)
        hint = f"layers of {family} are not simulated: {unlike[family]}"
    draft.need("model", where, said, found, "a model that is known here", hint)


def tower_of(draft: Recipe) -> float | None:
    """Parameters of the part that sees beside a bundled text model, where they are known."""
    weights: float | None = tables()["towers"].get(draft.get("model.name", ""))
    return weights


PACKED = "packed samples: attention sees each document alone; how long those are (their mean) is the data's"


def packed(draft: Recipe, said: str, where: str, found: object) -> None:
    """Notes that samples hold several documents, of a length that the data have."""
    draft.lose_unless("training.packed", where, said, found, PACKED)


def documents(draft: Recipe, corpus: str, said: str, where: Source) -> None:
    """Takes the mean of a known corpus for the length of the documents in a sample."""
    mean = tables()["documents"][corpus]
    draft.set("training.packed", mean, said, where)
    draft.assume(
        f"documents of {mean} tokens, the mean of {corpus}, which attention tells apart"
    )


def missing_length(draft: Recipe, said: str, where: str, more: str = "") -> None:
    """Notes that nobody knows how many tokens a sample has."""
    hint = f"--set training.seq_len=N says it{more}"
    draft.need("training.seq_len", where, said, "nothing", "tokens of a sample", hint)
