"""Inputs that are neither files of text nor options: the third fuzzer.

    python -m tests.fuzz.others 2000 [--first 0] [--only mcp]

Recordings of `prestep capture` and tables in Parquet whose values are changed, arguments of agents' tools, questions to
the explorer, changes of a replay, answers to `prestep init`, scripts that repeat themselves, and places where a file should be (a folder, a link to itself, a device). Each ends
as a command does: a result, or a message that names what was found. Prints what did not.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from prestep.sim.commands.served import tools
from prestep.sim.errors import PrestepError
from prestep.sim.studies.explorer.answers import Explorer
from prestep.workloads.capture import recording
from tests.fuzz import options
from tests.fuzz.mutants import NASTY, flipped
from tests.fuzz.running import JUDGES, SECONDS, ended, outcome
from tests.fuzz.seeds import SCENARIO, Seed
from tests.fuzz.structured import STRANGE, changed
from tests.workloads.recipe_examples import MEGATRON, text_with
from tests.workloads.test_capture_recording import COMPUTE, all_reduce, tables

Chance = random.Random
#: An input of a kind: with a random source, in a folder; what was wrong, empty for nothing.
Kind = Callable[[Chance, Path], str]
GOOD_REPLAY = (
    *("parallel.dp=2", "parallel.dp=4", "nvlink.bandwidth=2x", "gpu.flops=2x"),
    *("gpu[0].clock=0.9x", "kernels.gemm=0.5x", "comm.dp=0.5x", "host=0.5x"),
)


def capture(chance: Chance, folder: Path) -> str:
    """A recording with changed values or bytes: run, shown, set beside a trace."""
    tree = copy.deepcopy(_recording())
    for _ in range(chance.choice((1, 1, 2))):
        tree = changed(tree, chance) if isinstance(tree, dict | list) else tree
    try:
        data = json.dumps(tree).encode("utf-8", "replace")
    except (ValueError, TypeError):
        return ""  # a value that JSON has no text for
    path = folder / "x.capture"
    packed = gzip.compress(data)
    path.write_bytes(
        flipped(packed, chance.randrange(2**32)) if chance.random() < 0.1 else packed
    )
    words = chance.choice(
        (
            ("run", "FILE", "--json"),
            ("capture", "show", "FILE", "--json"),
            ("run", "FILE", "--cluster", "dgx-h200", "--json"),
            ("replay", "BESIDE/trace.json", "--compare", "FILE", "--json"),
        )
    )
    return outcome(Seed("capture", ".capture", "", words), path, folder / "out.json")


@cache
def _recording() -> Any:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "job.capture"
        recording.write(path, tables([*COMPUTE, all_reduce(1)], 2))
        return json.loads(gzip.decompress(path.read_bytes()))


def results(chance: Chance, folder: Path) -> str:
    """A sweep's results with other columns, values or types: drawn."""
    rows = [
        {
            "set.training.micro_batch": str(n),
            "step_time": 0.1 * n,
            "mfu": 0.4,
            "tokens_per_second_per_gpu": 1e4 * n,
            "error": "",
        }
        for n in (1, 2, 4)
    ]
    path = folder / "x.parquet"
    words = ("plot", "FILE", "--x", "training.micro_batch", "-o", "OUT.svg")
    return _table(chance, rows, path, words)


def kernels(chance: Chance, folder: Path) -> str:
    """A table of measured kernels beside a cluster, with other columns, values or types."""
    row = {
        "kind": "gemm",
        "layout": "nn",
        "dtype": "bf16",
        "shape": "256x256x256",
        "bytes": 393216.0,
        "seconds": 5e-6,
        "noise": 0.02,
        "count": 10,
        "source": "measured",
    }
    rows = [dict(row, shape=f"{n}x256x256", seconds=n * 2e-8) for n in (256, 512)]
    (folder / "mine.toml").write_text(
        'extends = "h200-host-4"\n[gpu]\nextends = "h200"\ntable = "x.parquet"\n'
    )
    (folder / "step.toml").write_text(SCENARIO)
    words = ("run", "BESIDE/step.toml", "--cluster", "BESIDE/mine.toml", "--json")
    return _table(chance, rows, folder / "x.parquet", words)


def _table(
    chance: Chance, rows: list[dict[str, Any]], path: Path, words: tuple[str, ...]
) -> str:
    names = list(rows[0])
    columns = {name: [row[name] for row in rows] for name in names}
    for _ in range(chance.choice((1, 1, 2))):
        name = chance.choice(names)
        kind = chance.randrange(5)
        if kind == 0:
            columns.pop(name, None)
        elif kind == 1 and name in columns:
            columns[name] = [chance.choice(STRANGE)] * len(rows)
        elif kind == 2 and name in columns:
            column = columns[name]
            if column:
                column[chance.randrange(len(column))] = chance.choice(STRANGE)
        elif kind == 3:
            columns = {key: value * 0 for key, value in columns.items()}
        elif name in columns:
            columns[f"{name}."] = columns.pop(name)
    try:
        table = pa.table(columns)
        pq.write_table(table, path)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return ""  # no such column can be
    data = path.read_bytes()
    if chance.random() < 0.1:
        path.write_bytes(flipped(data, chance.randrange(2**32)))
    return outcome(Seed("table", ".parquet", "", words), path, path.parent / "out")


def mcp(chance: Chance, folder: Path) -> str:
    """A call of an agent's tool with arguments of any type."""
    tool = chance.choice([*tools.TOOLS.values()])
    keys = list(tools.input_schema(tool)["properties"])
    given = {
        chance.choice(keys) if chance.random() < 0.9 else "x": _argument(chance)
        for _ in range(chance.randrange(5) if keys else 0)
    }
    for name, good in (
        ("scenario", "mlp-ddp4"),
        ("cluster", "h200-host-4"),
        ("files", [str(folder / "trace.json")]),
        ("max_bytes", "1M"),
    ):
        if name in keys and chance.random() < 0.8:
            given[name] = good
    given.pop(tools.INLINE, None)
    try:
        list(tools.texts(tool, given))
        words = tools.arguments(tool, given)
    except PrestepError as error:
        return "" if str(error).strip() else "an empty message"
    JUDGES.update({"run", "whatif", "collective", "replay", "doctor", "list"})
    told = outcome(Seed("mcp", "", "", tuple(words)), folder / "x", folder / "out")
    return f"{words}: {told}" if told else ""


def _argument(chance: Chance) -> Any:
    kind = chance.randrange(4)
    if kind == 0:
        return chance.choice(STRANGE)
    if kind == 1:
        return [
            chance.choice((*NASTY, *options.VALUES)) for _ in range(chance.randrange(3))
        ]
    if kind == 2:
        key, value = chance.choice(options.KEYS), chance.choice(options.VALUES)
        return [f"{key}={value}"]
    return chance.choice((*NASTY, *options.VALUES, 0, -1, 3, 1e308, True, None))


@cache
def _explorer() -> Explorer:
    folder = Path(tempfile.mkdtemp())
    (folder / "step.toml").write_text(SCENARIO)
    return Explorer(folder / "step.toml")


def explorer(chance: Chance, folder: Path) -> str:
    """A question of the explorer's page: values of its controls, and others."""
    asked = {}
    for _ in range(chance.randrange(1, 5)):
        knob = chance.choice(_explorer().knobs)
        value = chance.choice(knob.values)
        if chance.random() < 0.2:
            value = chance.choice((*NASTY, *options.VALUES))
        asked[knob.key if chance.random() < 0.95 else chance.choice(options.KEYS)] = (
            value
        )
    try:
        told = _explorer().answer(asked)
        text = json.dumps(told, allow_nan=False)
        if not told["mistakes"]:
            step = _explorer().step(asked)
            text += json.dumps(step, allow_nan=False)
    except PrestepError as error:
        return "" if str(error) else "an empty message"
    except Exception:
        return f"{asked}: {traceback.format_exc()[-900:]}"
    wrong = [w for w in (">nan", "-inf", ">inf", "nan s") if w in text]
    return f"{asked}: {wrong}" if wrong else ""


#: What is typed at the questions of `prestep init`; an empty line takes what is offered.
GOOD_ANSWERS = ("", "llama3.2-1b", "dgx-h100", "2", "512", "64", "BESIDE/mine.toml")


def init(chance: Chance, folder: Path) -> str:
    """Answers to the questions of `prestep init`, until they end."""
    (folder / 'a "strange" name.toml').write_text('extends = "h200-host-4"\n')
    strange = (*NASTY, *options.VALUES, "-1", str(10**30), str(folder / "loop.json"))
    quoted = f'{folder}/a "strange" name.toml'
    answers = [
        chance.choice((*strange, quoted))
        if chance.random() < 0.3
        else chance.choice(GOOD_ANSWERS)
        for _ in range(chance.randrange(9))
    ]
    if chance.random() < 0.7:  # such that some reach the end
        answers = ["llama3.2-1b", quoted, "", "512", "64", *answers]
    typed = "\n".join(line.replace("BESIDE", str(folder)) for line in answers)
    words = ("init", "-o", "OUT", "--force")
    told = outcome(
        Seed("init", "", "", words), folder / "x", folder / "job.toml", typed
    )
    if ended.code == 130:  # answers that end before the questions do, as with Ctrl-D
        return ""
    if told:
        return f"{answers}: {told}"
    if ended.code == 0:
        again = Seed("init", "", "", ("run", "FILE", "--json"))
        told = outcome(again, folder / "job.toml", folder / "out")
    return f"{answers} written: {told}" if told else ""


def places_of_scripts(chance: Chance, folder: Path) -> str:
    """A vanished folder, an empty or binary file, or a link to itself where a recipe's script should be."""
    path = folder / chance.choice(("vanished/pretrain.sh", "here/pretrain.sh"))
    if path.parent.name == "here":
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        if chance.random() < 0.3:
            path.symlink_to(path)
        else:
            path.write_bytes(chance.randbytes(chance.choice((0, 1, 1000))))
    words = chance.choice(
        (
            ("import-recipe", "FILE", "--cluster", "dgx-h100"),
            ("run", "FILE", "--cluster", "dgx-h100", "--json"),
            ("replay", str(path.parent), "--json"),
        )
    )
    told = outcome(Seed("scripts", "", "", words), path, folder / "out")
    return f"{words}: {told}" if told else ""


#: What scripts say again and again: variables that use each other, brackets and quotes that nobody closes.
REPEATED = (
    *("A{n}=$A{m}$A{m}\n", "export A{n}=${{A{m}}}${{A{m}}}x\n", "\n", "$((", "$(", '"'),
    *("${{a:-", "(", "A{n}=$((A{m} * A{m}))\n", "if [ $A{m} = a ]\n", "\\ ", "--a "),
    *('ARGS="$ARGS --a"\n', ": ${{A{n}:=$A{m}$A{m}}}\n", "source x.sh\n", "#", " "),
)


def scripts(chance: Chance, folder: Path) -> str:
    """A shell script that says something thousands of times, read as arguments and as exports."""
    said, times = chance.choice(REPEATED), chance.choice((20, 1000, 30_000))
    repeated = "".join(said.format(n=n + 1, m=n) for n in range(times))
    lines = ["A0=aa", repeated]
    if chance.random() < 0.5:
        path = folder / "pretrain.sh"
        lines.append(text_with(MEGATRON))
    else:
        path = folder / "config_DGXH100_1x8.sh"
        lines += ["", "export DGXNGPU=8", "export MINIBS=2"]
    if chance.random() < 0.2:
        lines.reverse()
    path.write_text("\n".join(lines))
    words = ("import-recipe", "FILE", "--cluster", "dgx-h100")
    told = outcome(Seed("scripts", ".sh", "", words), path, folder / "out")
    return f"{said!r} {times} times: {told}" if told else ""


def replay(chance: Chance, folder: Path) -> str:
    """A change of a replay: what is accepted changes what is said, or is what was there."""
    words = ["replay", "BESIDE/trace.json"]
    for _ in range(chance.randrange(1, 3)):
        good = chance.random() < 0.5
        change = (
            chance.choice(GOOD_REPLAY)
            if good
            else f"{chance.choice((*options.KEYS, 'dp', 'comm.dp', 'kernels.x'))}="
            f"{chance.choice((*NASTY, *options.VALUES))}"
        )
        words += ["--set", change.replace("\x00", "")]
    if chance.random() < 0.4:
        words += ["--cluster", chance.choice(("dgx-h100", "h200-host-4", "mi300x"))]
    if chance.random() < 0.2:
        words += ["--comm", "simulated"]
    JUDGES.add("replay")
    found = outcome(
        Seed("replay", ".json", "", (*words, "--json")), folder / "x", folder / "out"
    )
    return f"{words}: {found}" if found else ""


#: What lies where a file should be.
PLACES = (
    "folder",
    "loop",
    "/dev/null",
    "/dev/full",
    "/proc/self/mem",
    "dangling",
    "long",
)


def places(chance: Chance, folder: Path) -> str:
    """A folder, a link to itself, a device or an endless name where a command reads or writes a file."""
    words = list(chance.choice(options.GOOD))
    what = chance.choice(PLACES)
    place = {
        "folder": str(folder / "a folder"),
        "loop": str(folder / "loop.json"),
        "dangling": str(folder / "dangling.toml"),
        "long": str(folder / ("x" * 300)),
    }.get(what, what)
    files = [n for n, word in enumerate(words) if "BESIDE" in word or "OUT" in word]
    if files and chance.random() < 0.6:
        words[chance.choice(files)] = place
    else:
        found = [p for p in options.options_of(words) if isinstance(p, click.Option)]
        paths = [
            p
            for p in found
            if "FILE" in (p.metavar or "") or "DIR" in (p.metavar or "")
        ]
        if not paths:
            return ""
        words += [chance.choice(paths).opts[-1], place]
    JUDGES.update({"run", "whatif", "topology", "replay", "calibrate", "convert"})
    told = outcome(Seed("places", "", "", tuple(words)), folder / "x", folder / "out")
    return f"{words}: {told}" if told else ""


KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        *(capture, results, kernels, mcp, explorer, replay, places),
        *(init, scripts, places_of_scripts),
    )
}


def prepare(folder: Path) -> None:
    """The files that good words name, and what is none."""
    options.prepare(folder)
    (folder / "a folder").mkdir()
    (folder / "loop.json").symlink_to(folder / "loop.json")
    (folder / "dangling.toml").symlink_to(folder / "nowhere")


def found(name: str, number: int, folder: Path) -> str:
    """What is wrong with an input of a kind."""
    return KINDS[name](random.Random(number), folder)


def main(kinds: dict[str, Kind] = KINDS) -> int:
    """Run them; 1 if any was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.others")
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds whose name has this in it")
    told = parser.parse_args()
    names = [name for name in kinds if told.only in name]
    tried, wrong = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for number in range(told.first, told.first + told.count):
            kind = names[number % len(names)]
            tried[kind] += 1
            begun = time.process_time()
            text = kinds[kind](random.Random(number), folder)
            seconds = time.process_time() - begun
            if text or seconds > SECONDS:
                wrong[kind] += 1
                print(f"{kind} {number} {seconds:.1f} s: {text}", flush=True)
    print(f"tried {dict(tried)}; wrong {dict(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
