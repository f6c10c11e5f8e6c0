"""Predicts a training job in place of running it: `PRESTEP=1 torchrun ... -m prestep.capture train.py`.

Without PRESTEP a launcher's processes run the program as it is, so the line can stay in a launch script.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prestep.sim import api
from prestep.sim.errors import InputError, PrestepError
from prestep.workloads.capture.recorder import captured

GIB = 2.0**30
#: Set where a program is recorded: there it trains.
RECORDED = "PRESTEP_CAPTURE_OBJECTS"


def main() -> int:
    """Predicts the program, or runs it where a launcher started it without PRESTEP; its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m prestep.capture", description=__doc__
    )
    parser.add_argument(
        "--world", type=int, help="ranks; default: the launcher's, else 1"
    )
    parser.add_argument("--cluster", help="name or file; default: hosts of H200s")
    parser.add_argument(
        "--save", type=Path, metavar="FILE.json", help="where the figures go"
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE.json",
        help="figures of an earlier --save",
    )
    parser.add_argument(
        "--slower",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="that fails; default 0.05",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="SCRIPT [ARGS]...")
    options = parser.parse_args()
    command = (
        [each for each in options.command if each != "--"]
        if options.command[:1] == ["--"]
        else options.command
    )
    if not command or not Path(command[0]).is_file():
        parser.error("a Python script that is there comes last")
    if "RANK" in os.environ and not _wanted():
        sys.argv = command
        sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
        runpy.run_path(command[0], run_name="__main__")
        return 0
    return _ending(
        command,
        options.world,
        options.cluster,
        options.save,
        options.baseline,
        options.slower,
    )


def before_training() -> None:
    """With PRESTEP=1 ends the program here, predicted: 0, or 1 if it does not fit. Callbacks of trainers call it."""
    if _wanted() and RECORDED not in os.environ:
        raise SystemExit(
            _ending(sys.argv, None, os.environ.get("PRESTEP_CLUSTER"), None, None, 0.0)
        )


def trainer_callback() -> Any:
    """A callback for the Trainer of transformers: `Trainer(..., callbacks=[prestep.capture.trainer_callback()])`."""
    return _calling("transformers", "TrainerCallback", "on_train_begin")


def lightning_callback() -> Any:
    """A plug-in for Lightning: `Trainer(callbacks=[prestep.capture.lightning_callback()])`."""
    return _calling("lightning.pytorch", "Callback", "on_fit_start")


def _calling(library: str, name: str, event: str) -> Any:
    """An object of a library's class of callbacks that predicts as training begins."""
    base = getattr(importlib.import_module(library), name)
    methods = {event: lambda *_, **__: before_training()}
    return type("Prestep", (base,), methods)()


def _wanted() -> bool:
    return os.environ.get("PRESTEP", "0") not in ("", "0")


def _ending(
    command: Sequence[str],
    world: int | None,
    cluster: str | None,
    save: Path | None,
    baseline: Path | None,
    slower: float,
) -> int:
    """Prints the figures as a trainer logs, and why the job should not be queued; the exit code."""
    if os.environ.get("RANK", "0") != "0":
        return 0
    try:
        earlier = _read(baseline) if baseline is not None else None
        figures = predicted(
            command, world or int(os.environ.get("WORLD_SIZE", "1")), cluster
        )
    except PrestepError as error:
        print(error, file=sys.stderr)
        return error.code
    print({f"prestep_{name}": value for name, value in figures.items()}, flush=True)
    if save is not None:
        save.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    reasons = list(objections(figures, earlier, slower, str(baseline)))
    for reason in reasons:
        print(f"prestep: {reason}", file=sys.stderr)
    return 1 if reasons else 0


def predicted(
    command: Sequence[str], world: int, cluster: str | None = None
) -> dict[str, Any]:
    """Step, throughput, memory and network of a program on so many ranks."""
    with tempfile.TemporaryDirectory(prefix="prestep-") as folder:
        recording = Path(folder) / "job.capture"
        captured(
            tuple(command),
            recording,
            world=world,
            cluster=cluster,
            stop=True,
            quiet=True,
        )
        result = api.simulate(str(recording), cluster=cluster)
    rank, peak = max(result.peak_memory.items(), key=lambda each: each[1].total)
    sample, rate = result.scenario.get("sample"), result.tokens_per_second_per_gpu
    counted = sample and math.isfinite(rate)  # a program may say nothing of samples
    return {
        "step_s": _short(result.step_time),
        **({f"{sample}_per_s_per_gpu": _short(rate)} if counted else {}),
        "peak_gib": _short(peak.total / GIB),
        "room_gib": _short((result.memory_capacity or 0.0) / GIB),
        "peak_rank": rank,
        **{
            f"{each.kind}_gib": _short(each.bytes / GIB)
            for each in result.link_kinds
            if each.bytes
        },
        "world": world,
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def objections(
    figures: Mapping[str, Any],
    earlier: Mapping[str, Any] | None,
    slower: float,
    name: str,
) -> list[str]:
    """Why a job should not be queued.

    Examples
    --------
    >>> now = {"step_s": 0.112, "peak_gib": 150.2, "room_gib": 139.8, "peak_rank": 0}
    >>> for reason in objections(now, {"step_s": 0.1}, 0.05, "last.json"):
    ...     print(reason)
    does not fit: rank 0 needs 150.2 GiB of 139.8
    12.0 % slower than last.json: 0.112 s a step after 0.1
    """
    found = []
    if 0 < figures["room_gib"] < figures["peak_gib"]:
        needs = f"rank {figures['peak_rank']} needs {figures['peak_gib']} GiB"
        found.append(f"does not fit: {needs} of {figures['room_gib']}")
    change = figures["step_s"] / earlier["step_s"] - 1.0 if earlier else 0.0
    if earlier and change > slower:
        times = f"{figures['step_s']} s a step after {earlier['step_s']}"
        found.append(f"{change:.1%} slower than {name}: {times}".replace("%", " %", 1))
    return found


def _read(path: Path) -> dict[str, Any]:
    """Figures of an earlier run."""
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))
        float(figures["step_s"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = "a file that --save of prestep.capture wrote"
        raise InputError.of(str(path), "", str(error), expected) from None
    return dict(figures)


if __name__ == "__main__":
    sys.exit(main())
