"""Training cases: the usual ones for a number of GPUs, or a file's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError, Mistake, unknown
from prestep.validation.formats.usual import COLLECTIVES, MODES, Case
from prestep.workloads.operation import words


@dataclass(frozen=True)
class Series:
    """Collectives of one setting: operations and their sizes in bytes."""

    label: str
    env: Mapping[str, str]
    ranks: int | None
    ops: tuple[str, ...]
    sizes: tuple[int, ...]


OPS = (*COLLECTIVES, "send_0_1", "send_0_last")
# Collectives of a step wait for the host's: these labels of rows are settings of NCCL.
CHANNELS = "ch"
# Variables that a file may set: numbers and names of NCCL's, nothing that loads a library or names a file.
SETTINGS = words(
    "NCCL_ALGO NCCL_PROTO NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_MAX_CTAS NCCL_MIN_CTAS NCCL_BUFFSIZE "
    "NCCL_NTHREADS NCCL_P2P_DISABLE NCCL_SHM_DISABLE NCCL_CROSS_NIC"
)


@dataclass(frozen=True)
class Asked:
    """What a file asks for: training cases, and series of collectives."""

    training: tuple[Case, ...] = ()
    series: tuple[Series, ...] = ()


def load(path: Path) -> Asked:
    """Cases of a file: a JSON list or JSON lines of cases, or of rows of measurements that hold one under `case`.

    A row's `label` (ch4: at most four channels), `env` and `world` (GPUs) are kept: cases of one environment share a
    group of processes. A plan (an object with `training_<n>gpu` and `collectives`) is taken too.

    Raises
    ------
    InputError
        With every line that is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
        plan = (
            json.loads(text)
            if text.lstrip().startswith("[") or _one_object(text)
            else _lines(text)
        )
    except (ValueError, OSError) as error:
        expected = "a JSON list of cases, one JSON object a line, or a plan"
        raise InputError.of(str(path), "", str(error), expected) from None
    mistakes: list[Mistake] = []
    records, series = (
        _of_plan(plan, path.name, mistakes) if isinstance(plan, dict) else (plan, [])
    )
    objects = tuple(
        _case(record, f"{path.name}:{at}", mistakes)
        for at, record in enumerate(records, 1)
    )
    if not objects and not series and not mistakes:
        mistakes.append(Mistake(str(path), "", "no case", "at least one"))
    InputError.check(mistakes)
    return Asked(objects, tuple(series))


def _one_object(text: str) -> bool:
    """Whether the file is one object over several lines, and none of cases."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and "mode" not in value and "case" not in value


def _of_plan(
    plan: Mapping[str, Any], where: str, mistakes: list[Mistake]
) -> tuple[list[Any], list[Series]]:
    records: list[Any] = []
    for key, value in plan.items():
        if match := re.fullmatch(r"training_(\d{1,4})gpu", key):
            records += [{"case": case, "world": int(match[1])} for case in value]
    series = [
        _series(one, f"{where}: collectives", mistakes)
        for one in plan.get("collectives", ())
    ]
    return records, series


def _series(one: Mapping[str, Any], where: str, mistakes: list[Mistake]) -> Series:
    env = {str(k): str(v) for k, v in (one.get("env") or {}).items()}
    mistakes += [
        unknown(where, f"env.{name}", name, SETTINGS)
        for name in env
        if name not in SETTINGS
    ]
    ops, sizes = tuple(map(str, one.get("ops", ()))), tuple(one.get("sizes", ()))
    mistakes += [unknown(where, "ops", op, OPS) for op in ops if op not in OPS]
    if (
        not all(isinstance(size, int) and size > 0 for size in sizes)
        or not sizes
        or not ops
    ):
        expected = "bytes, and at least one operation"
        mistakes.append(Mistake(where, "sizes", repr(sizes)[:60], expected))
    ranks = one.get("ranks")
    return Series(
        str(one.get("label", "default")),
        env,
        ranks if isinstance(ranks, int) else None,
        ops,
        sizes,
    )


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _case(record: Any, where: str, mistakes: list[Mistake]) -> Case:
    """A case of a file, with the setting that it runs in; what is wrong with it goes to `mistakes`."""
    if not isinstance(record, Mapping):
        mistakes.append(Mistake(where, "", type(record).__name__, "an object"))
        return {}
    inner = record.get("case")
    case = dict(inner if isinstance(inner, Mapping) else record)
    case.setdefault("id", record.get("id", where))
    mistakes += _wrong(case, where)
    label, env = _setting(record)
    mistakes += _wrong_setting(label, env, where)
    world = record.get("world", case.get("gpus"))
    ranks = int(world) if isinstance(world, int) else None
    return {**case, "_label": label, "_env": env, "_world": ranks}


def _setting(record: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Label and variables of a case; a label such as ch4 is a number of channels."""
    label = str(record.get("label", "default"))
    env = {str(key): str(value) for key, value in (record.get("env") or {}).items()}
    if _is_channels(label):
        env.setdefault("NCCL_MAX_NCHANNELS", label.removeprefix(CHANNELS))
    return label, env


def _is_channels(label: str) -> bool:
    """Whether a label is a number of channels."""
    return label.startswith(CHANNELS) and label[2:].isdigit()


def _wrong_setting(label: str, env: Mapping[str, str], where: str) -> Iterator[Mistake]:
    """A label or a variable that no process here can be given."""
    if label != "default" and not _is_channels(label):
        expected, hint = "default, or ch<number>", "other labels are other machines"
        yield Mistake(where, "label", label, expected, hint)
    for name in env:
        if name not in SETTINGS:
            yield unknown(where, f"env.{name}", name, SETTINGS)


def _wrong(case: Mapping[str, Any], where: str) -> Iterator[Mistake]:
    mode, model, batch = (case.get(key) for key in ("mode", "model", "mbs"))
    if mode not in MODES:
        yield Mistake(where, "mode", repr(mode), ", ".join(MODES))
    if not isinstance(model, str):
        expected = "a model: llama1b, resnet50, seedmlp_1024, ..."
        yield Mistake(where, "model", repr(model), expected)
    if not isinstance(batch, int) or batch <= 0:
        yield Mistake(where, "mbs", repr(batch), "samples per rank and microbatch")


def groups(
    cases: Sequence[Case], world: int
) -> list[tuple[str, dict[str, str], int, list[Case]]]:
    """Cases by label, environment and number of GPUs, in their order: each group runs in processes of its own."""
    by_setting: dict[tuple[Any, ...], tuple[str, dict[str, str], int, list[Case]]] = {}
    for case in cases:
        label, env, ranks = (
            case.get("_label", "default"),
            case.get("_env", {}),
            case.get("_world") or world,
        )
        key = (label, tuple(sorted(env.items())), ranks)
        by_setting.setdefault(key, (label, env, ranks, []))[3].append(case)
    return list(by_setting.values())
