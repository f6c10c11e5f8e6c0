"""`python -m lab.report.public_scripts`: training scripts of public repositories, captured and predicted as they are.

`lab/cases/scripts/scripts.toml` lists them. A checkout of each repository lies in `--sources` as `owner__name`, and
what scripts read was made by `lab/cases/scripts/harness/standins.py` in `--data`. Scripts run one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prestep.sim.errors import PrestepError
from prestep.sim.predict import execute, plan, reported
from prestep.sim.spec.load import load_scenario
from prestep.workloads.capture.recorder import captured

CASE = Path(__file__).parents[1] / "cases" / "scripts"
RESULTS = CASE / "results.jsonl"
CLUSTER = "h200-host-4"
#: How much of what a script that failed printed last is kept.
LINES, CHARACTERS = 2, 400
#: No network; `{data}` is the folder of stand-ins.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HOME": "{data}/hf",
    "TORCH_HOME": "{data}/torch",
    "TIKTOKEN_CACHE_DIR": "{data}/tiktoken",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
}


def listed(only: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Scripts of the list; `only`: parts of names."""
    tables = tomllib.loads((CASE / "scripts.toml").read_text())
    for table in tables["script"]:
        if not only or any(_names(part, table["name"]) for part in only):
            yield table


def _names(part: str, name: str) -> bool:
    return part[1:] == name if part.startswith("=") else part in name


def attempt(
    script: Mapping[str, Any], sources: Path, data: Path, captures: Path, timeout: int
) -> dict[str, Any]:
    """Captures a script and predicts its step on an H200.

    Returns
    -------
    dict
        ``outcome``: "predicted", "refused" (in a sentence of prestep's), "failed" (the script printed a traceback) or
        "timeout"; ``said``: what was printed last; ``cpu_s``: seconds of processors that the capture took.
    """
    repository = sources / str(script["repository"]).replace("/", "__")
    path = repository / script["path"]
    recording = captures / f"{script['name']}.capture"
    recording.unlink(missing_ok=True)
    log = captures / f"{script['name']}.log"
    commit = sources / f"{repository.name}.commit"
    row = {"name": script["name"], "commit": commit.read_text().strip()}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = used.ru_utime + used.ru_stime
    for place, target in script.get("links", {}).items():
        if not os.path.lexists(repository / place):
            (repository / place).symlink_to(_filled(target, data))
    world = script.get("world", 1)
    command = (str(path), *(_filled(each, data) for each in script.get("args", ())))
    try:
        with _surroundings(script, repository, data, log), _alarm(timeout):
            how = {"world": world, "cluster": CLUSTER, "stop": True}
            captured(command, recording, mark=script.get("mark", ""), **how)
        told = {"outcome": "predicted", **_predicted(recording, world)}
    except TimeoutError:
        told = {"outcome": "timeout"}
    except PrestepError as error:
        told = _refusal(str(error), log.read_text(errors="replace"))
        told["said"] = told["said"].replace(f"{sources}/", "")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {**row, **told, "cpu_s": round(used.ru_utime + used.ru_stime - begin, 1)}


def _predicted(recording: Path, world: int) -> dict[str, Any]:
    hosts = -(-world // 4)
    cluster = [f"cluster.name={CLUSTER}"] if hosts == 1 else ["cluster.name=rail-h200"]
    planned = plan(load_scenario(recording, cluster))
    result = reported(planned, execute(planned))
    peak = max(memory.total for memory in result.peak_memory.values())
    return {
        "step_s": float(f"{result.step_time:.4g}"),
        "peak_gib": round(peak / 2**30, 2),
    }


def _refusal(sentence: str, printed: str) -> dict[str, Any]:
    """Whether prestep refused, or the script ended with an error of its own; what either said last."""
    lines = [line for line in printed.strip().splitlines() if line.strip()]
    if any("Traceback (most recent" in line for line in lines):
        return {"outcome": "failed", "said": "\n".join(lines[-LINES:])[-CHARACTERS:]}
    own = [line for line in lines if line.startswith("prestep capture: ")]
    said = own[-1] if own else sentence.strip()
    return {"outcome": "refused", "said": said[-CHARACTERS:]}


def _filled(text: Any, data: Path) -> str:
    return str(text).replace("{data}", str(data))


@contextmanager
def _surroundings(
    script: Mapping[str, Any], repository: Path, data: Path, log: Path
) -> Iterator[None]:
    """The folder and the variables that a script is started with; what it prints goes to a file."""
    beside = {
        "script": (repository / script["path"]).parent,
        "repository": repository,
    }
    before, folder = dict(os.environ), os.getcwd()
    paths = [CASE / "harness", *(repository / p for p in script.get("pythonpath", ()))]
    given = {**ENVIRONMENT, **script.get("env", {})}
    outputs = [os.dup(1), os.dup(2)]
    sys.stdout.flush()
    with open(log, "wb") as file:
        os.environ.update({key: _filled(value, data) for key, value in given.items()})
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [*map(str, paths), before.get("PYTHONPATH", "")]
        )
        os.chdir(beside.get(script.get("cwd", ""), data / "cwd"))
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            for number, saved in enumerate(outputs, 1):
                os.dup2(saved, number)
                os.close(saved)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    def late(number: int, frame: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "only", nargs="*", help="=NAME, or a part of names; default: all"
    )
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--captures", type=Path, required=True)
    parser.add_argument("--timeout", type=int, default=180)
    parser.add_argument("--fresh", action="store_true", help="those predicted too")
    chosen = parser.parse_args()
    chosen.captures.mkdir(parents=True, exist_ok=True)
    for script in listed(chosen.only):
        rows = kept()
        before = rows.get(script["name"], {}).get("outcome")
        if before == "predicted" and not chosen.fresh:
            continue
        begin = time.perf_counter()
        row = attempt(
            script, chosen.sources, chosen.data, chosen.captures, chosen.timeout
        )
        print(f"{time.perf_counter() - begin:5.0f} s {json.dumps(row)}", flush=True)
        rows = {**kept(), row["name"]: row}
        lines = [json.dumps(rows[name]) + "\n" for name in sorted(rows)]
        RESULTS.write_text("".join(lines))
    print(dict(Counter(row["outcome"] for row in kept().values())))


def kept() -> dict[str, dict[str, Any]]:
    """Rows of scripts that were tried, by name."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


if __name__ == "__main__":
    main()
