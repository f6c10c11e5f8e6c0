"""Rows of steps in low precision as scenarios.

Columns as in ``lab/cases/low-precision/rows.csv``; what the sources say in words is in setups.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lab.formats.csv_rows import MeasuredStep, csv_rows
from lab.formats.published_columns import natural, positive
from prestep.sim import schema
from prestep.sim.errors import InputError, Mistake
from prestep.sim.schema import Items, Number, Table, Text
from prestep.workloads.models.model import MODELS, read_model

FOLDER = Path(__file__).parents[1] / "cases" / "low-precision"
RATE = "tokens_s_per_gpu"
COLUMNS = (
    "source", "hardware", "gpus", "model", "seq_len", "local_batch", "parallel", "recompute", "compile", "precision",
    RATE,
)  # fmt: skip
#: What a setup may ask of a row: cells of these names, `degrees` of the cell `parallel`, and which engine runs it.
PATTERNS = ("source", "hardware", "model", "precision", "degrees", "engine")
SECTIONS = ("cluster", "training", "parallel", "pytorch", "megatron")
SETUP = Table(
    {
        **dict.fromkeys((*PATTERNS, "one_host", "hosts", "assumed"), Text()),
        "per_host": Number(low=1, whole=True),
        # A number of the row that another page of its source contradicts, and that the row's machine could not hold.
        "misprint": Table({"local_batch": Number(low=1, whole=True)}),
        # Cells of a row come as texts, sections as tables of a scenario, which is read strictly afterwards.
        **dict.fromkeys(SECTIONS, schema.Anything()),
    }
)
SCHEMA = Table(
    {
        "model": Items(Table({"name": Text(), "model": Text()}, ("name", "model"))),
        "setup": Items(SETUP),
    },
    ("model", "setup"),
)
#: Degrees as people write them in `parallel`: TP8 PP8 CP2 VP8, FSDP2 8, FSDP 256, EP 16, GBS 512.
DEGREE = re.compile(r"\b(TP|PP|CP|VP|EP|GBS)\s*(\d+)", re.IGNORECASE)
#: The first that is in `precision` counts.
FORMATS = (
    ("nvfp4", "nvfp4"),
    ("fp8|float8", "fp8"),
    ("bf16|bfloat16|none", "bf16"),
)
CHECKPOINTS = (("op", "products"), ("full", "full"))
LAYERS = re.compile(r"layers?\s*0\s*-\s*(\d+)")


@cache
def _everything() -> dict[str, Any]:
    return schema.read(FOLDER / "setups.toml", SCHEMA)


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file.

    Raises
    ------
    InputError
        If it cannot be read, or lacks rows or columns.
    """
    return csv_rows(path, COLUMNS, "a CSV file of steps in low precision")


def id_of(row: Mapping[str, str]) -> str:
    """A name for a row: what was trained in which format, on how many GPUs."""
    model, gpus = row["model"].split(" (")[0], row["gpus"].split()[0:1]
    machine = row["hardware"].split(" (")[0].split(",")[0]
    return f"{model} {row['precision']} on {' '.join(gpus)} {machine}"


def parse_row(row: Mapping[str, str]) -> MeasuredStep:
    """A row as a scenario.

    Raises
    ------
    InputError
        Saying what the row lacks or what is not known.
    """
    where = id_of(row)
    gpus, seq = _count(row, "gpus", where), _count(row, "seq_len", where)
    model, degrees = _model(row, where), _degrees(row, where)
    engine = _engine(model, degrees)
    setup, assumed = _setup_of({**row, "degrees": row["parallel"], "engine": engine})
    parallel = _parallel(gpus, degrees, where)
    printed = _count(row, "local_batch", where)
    batch = setup.get("misprint", {}).get("local_batch", printed)
    whole = degrees.get("GBS", batch * parallel["dp"])
    samples = _samples(batch, whole, degrees, engine)
    own = {
        "cluster": _cluster(gpus, setup, where),
        "model": {"name": model},
        "training": {"seq_len": seq, **samples, **dict(_format(row, where))},
        "parallel": parallel,
        "pytorch": _unquantized(row, model),
    }
    measured = whole * seq / (gpus * positive(row, RATE, where, "tokens/s"))
    source = row["source"].split("/")[0]
    return MeasuredStep(where, source, where, _over(setup, own), measured, assumed)


def _over(
    setup: Mapping[str, Any], own: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Sections of a setup with the row's own keys over them; those without any key are left out."""
    tables = {name: {**setup.get(name, {}), **own.get(name, {})} for name in SECTIONS}
    used = {name: table for name, table in tables.items() if table}
    return {**used, "model": dict(own["model"])}  # of a setup it is a pattern


def _degrees(row: Mapping[str, str], where: str) -> dict[str, int]:
    """Degrees by axis (TP, PP, ...), and GBS, as the row's `parallel` writes them."""
    text = row["parallel"]
    degrees = {name.upper(): natural(value) for name, value in DEGREE.findall(text)}
    if 0 in degrees.values():
        raise InputError(
            Mistake(where, "parallel", f'"{text}"', "degrees of at least 1")
        )
    return degrees


def _engine(model: str, degrees: Mapping[str, int]) -> str:
    """Whether rows of PyTorch's trainers run as compiled blocks, or as layers that are spread over ranks."""
    spread = any(degrees.get(name, 1) > 1 for name in ("TP", "PP", "CP", "EP"))
    experts = bool(read_model(MODELS / f"{model}.toml").experts)
    return "layers" if spread or experts else "blocks"


def _samples(
    batch: int, whole: int, degrees: Mapping[str, int], engine: str
) -> dict[str, int]:
    """Samples of a step: torchtitan's pipelines cut the local batch into microbatches of one."""
    staged = degrees.get("PP", 1) > 1 and "GBS" not in degrees
    if engine == "layers" and staged:
        return {"micro_batch": 1, "microbatches": batch, "global_batch": whole}
    return {"micro_batch": batch, "global_batch": whole}


def _setup_of(row: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """What every setup that fits says, later ones over earlier ones, and all that was assumed."""
    made: dict[str, Any] = {}
    assumed = []
    for setup in _everything()["setup"]:
        if not _fits(setup, row):
            continue
        assumed += [setup["assumed"]] if "assumed" in setup else []
        for name, value in setup.items():
            if isinstance(value, dict):
                made[name] = {**made.get(name, {}), **value}
            elif name not in (*PATTERNS, "assumed"):
                made[name] = value
    return made, "; ".join(assumed)


def _fits(setup: Mapping[str, Any], row: Mapping[str, str]) -> bool:
    patterns = ((name, setup.get(name)) for name in PATTERNS)
    return all(
        re.search(pattern, row[name], re.IGNORECASE)
        for name, pattern in patterns
        if isinstance(pattern, str)
    )


def _count(row: Mapping[str, str], name: str, where: str) -> int:
    """The whole number that a cell begins with."""
    found = re.match(r"\s*([\d,]+)", row[name])
    value = natural(found[1]) if found else 0
    if value < 1:
        raise InputError(Mistake(where, name, f'"{row[name]}"', "a whole number"))
    return value


def _model(row: Mapping[str, str], where: str) -> str:
    """The model's name here."""
    known = _everything()["model"]
    for one in known:
        if re.search(one["name"], row["model"], re.IGNORECASE):
            return str(one["model"])
    expected = f"one of {', '.join(one['model'] for one in known)}"
    raise InputError(Mistake(where, "model", f'"{row["model"]}"', expected))


def _parallel(gpus: int, degrees: Mapping[str, int], where: str) -> dict[str, Any]:
    """[parallel]: data parallelism takes what the other axes leave."""
    tp, pp, cp, ep = (degrees.get(name, 1) for name in ("TP", "PP", "CP", "EP"))
    if gpus % (tp * pp * cp):
        found = f"{gpus} GPUs in parts of {tp * pp * cp}"
        raise InputError(Mistake(where, "gpus", found, "a multiple of TP x PP x CP"))
    parallel: dict[str, Any] = {
        "dp": gpus // (tp * pp * cp),
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "uneven_stages": True,
    }
    if pp > 1 and degrees.get("VP", 1) > 1:
        parallel |= {"vpp": degrees["VP"], "schedule": "interleaved"}
    return parallel


def _cluster(gpus: int, setup: Mapping[str, Any], where: str) -> dict[str, Any]:
    """One host where the GPUs fit in it, else as many as they need."""
    per_host = setup.get("per_host", 8)
    name = setup.get("one_host" if gpus <= per_host else "hosts")
    if name is None:
        raise InputError(Mistake(where, "hardware", "unknown", "a machine of setups"))
    if gpus <= per_host:
        return {"name": name, **({"gpus": gpus} if gpus < per_host else {})}
    return {"name": name, "hosts": -(-gpus // per_host), "gpus": gpus}


def _format(row: Mapping[str, str], where: str) -> Iterator[tuple[str, str]]:
    """Number format and checkpointing, as far as the row says them."""
    named = [made for text, made in FORMATS if re.search(text, row["precision"], re.I)]
    if not named:
        expected = "bf16, float8, mxfp8 or nvfp4"
        raise InputError(Mistake(where, "precision", f'"{row["precision"]}"', expected))
    yield "precision", named[0]
    said_so = row["recompute"].strip()
    if said_so == "none":
        yield "recompute", "none"
        return
    for text, made in CHECKPOINTS:
        if re.search(text, said_so, re.IGNORECASE):
            yield "recompute", made
            return


def _unquantized(row: Mapping[str, str], model: str) -> dict[str, int]:
    """[pytorch] of last layers that stay in 16 bits, where the row says up to which it quantizes."""
    last = LAYERS.search(row["precision"])
    if not last:
        return {}
    layers = read_model(MODELS / f"{model}.toml").layers or 0
    left = max(0, layers - int(last[1]) - 1)
    return {"bf16_layers": left} if left else {}
