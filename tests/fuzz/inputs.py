"""Inputs that are no damaged file: arguments of agents' tools, questions to the explorer, answers to `prestep init`,
scripts that repeat themselves, changes of a replay, amounts as people write them, files in circles, places where a file
should be, and surroundings that lack something. Each ends as a command does: a result, or a message that says where.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click

from prestep.sim.errors import PrestepError
from prestep.sim.explorer.answers import Explorer
from prestep.sim.mcp import tools
from tests.fuzz import options
from tests.fuzz.damage import Chance
from tests.fuzz.running import GOOD, command, ended
from tests.fuzz.seeds import seeds
from tests.fuzz.values import AMOUNTS, KEYS, NASTY, OPTIONS, STRANGE, UNITS
from tests.workloads.recipe_examples import MEGATRON, text_with

GOOD_REPLAY = (
    *("parallel.dp=2", "parallel.dp=4", "nvlink.bandwidth=2x", "gpu.flops=2x"),
    *("gpu[0].clock=0.9x", "kernels.gemm=0.5x", "comm.dp=0.5x", "host=0.5x"),
)


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
    return command(words, folder)


def _argument(chance: Chance) -> Any:
    kind = chance.randrange(4)
    if kind == 0:
        return chance.choice(STRANGE)
    if kind == 1:
        return [chance.choice((*NASTY, *OPTIONS)) for _ in range(chance.randrange(3))]
    if kind == 2:
        key, value = chance.choice(KEYS), chance.choice(OPTIONS)
        return [f"{key}={value}"]
    return chance.choice((*NASTY, *OPTIONS, 0, -1, 3, 1e308, True, None))


@cache
def _explorer() -> Explorer:
    folder = Path(tempfile.mkdtemp())
    (folder / "step.toml").write_text(seeds()["scenario"].text)
    return Explorer(folder / "step.toml")


def explorer(chance: Chance, folder: Path) -> str:
    """A question of the explorer's page: values of its controls, and others."""
    asked = {}
    for _ in range(chance.randrange(1, 5)):
        knob = chance.choice(_explorer().knobs)
        value = chance.choice(knob.values)
        if chance.random() < 0.2:
            value = chance.choice((*NASTY, *OPTIONS))
        asked[knob.key if chance.random() < 0.95 else chance.choice(KEYS)] = value
    try:
        answer = _explorer().answer(asked)
        text = json.dumps(answer, allow_nan=False)
        if not answer["mistakes"]:
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
    strange = (*NASTY, *OPTIONS, "-1", str(10**30), str(folder / "loop.json"))
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
    words = ("init", "-o", "BESIDE/job.toml", "--force")
    # 130: answers that end before the questions do, as with Ctrl-D.
    wrong = command(words, folder, typed=typed, codes=GOOD | {130})
    if not wrong and ended.code == 0:
        wrong = command(("run", "FILE", "--json"), folder, "job.toml", codes=GOOD)
    return f"{answers}: {wrong}" if wrong else ""


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
            "import-recipe FILE --cluster dgx-h100",
            "run FILE --cluster dgx-h100 --json",
            f"replay {path.parent} --json",
        )
    )
    return command(words.split(), folder, f"{path.parent.name}/{path.name}")


#: What scripts say again and again: variables that use each other, brackets and quotes that nobody closes.
REPEATED = (
    *("A{n}=$A{m}$A{m}\n", "export A{n}=${{A{m}}}${{A{m}}}x\n", "\n", "$((", "$(", '"'),
    *("${{a:-", "(", "A{n}=$((A{m} * A{m}))\n", "if [ $A{m} = a ]\n", "\\ ", "--a "),
    *('ARGS="$ARGS --a"\n', ": ${{A{n}:=$A{m}$A{m}}}\n", "source x.sh\n", "#", " "),
)


def scripts(chance: Chance, folder: Path) -> str:
    """A shell script that says something thousands of times, read as arguments and as exports."""
    line, times = chance.choice(REPEATED), chance.choice((20, 1000, 30_000))
    repeated = "".join(line.format(n=n + 1, m=n) for n in range(times))
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
    wrong = command(words, folder, path.name, codes=GOOD)
    return f"{line!r} {times} times: {wrong}" if wrong else ""


def replay(chance: Chance, folder: Path) -> str:
    """A change of a replay: what is accepted changes what is said, or is what was there."""
    words = ["replay", "BESIDE/trace.json"]
    for _ in range(chance.randrange(1, 3)):
        good = chance.random() < 0.5
        change = (
            chance.choice(GOOD_REPLAY)
            if good
            else f"{chance.choice((*KEYS, 'dp', 'comm.dp', 'kernels.x'))}="
            f"{chance.choice((*NASTY, *OPTIONS))}"
        )
        words += ["--set", change.replace("\x00", "")]
    if chance.random() < 0.4:
        words += ["--cluster", chance.choice(("dgx-h100", "h200-host-4", "mi300x"))]
    if chance.random() < 0.2:
        words += ["--comm", "simulated"]
    return command([*words, "--json"], folder)


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
        paths = [
            option
            for option in options.options_of(words)
            if isinstance(option, click.Option)
            and re.search("FILE|DIR", option.metavar or "")
        ]
        if not paths:
            return ""
        words += [chance.choice(paths).opts[-1], place]
    return command(words, folder)


QUANTITIES = (
    *("nvlink.bandwidth", "nvlink.latency", "nic.bandwidth", "gpu.flops", "gpu.clock"),
    *(
        "gpu.power_limit",
        "gpu.hbm_bandwidth",
        "training.seq_len",
        "parallel.bucket_cap",
    ),
    *(
        "cluster.host_factor",
        "cluster.host_memory",
        "nccl.buffsize",
        "checkpoint.every",
    ),
    *("faults.slow_factor", "training.micro_batch", "nvlink.bandwidth ", "Gpu.Flops"),
)


def quantity(chance: Chance, folder: Path) -> str:
    """An amount with a unit, as people write them, in a change or in a file."""
    key = chance.choice(QUANTITIES)
    value = chance.choice(AMOUNTS) + chance.choice(("", " ")) + chance.choice(UNITS)
    words: tuple[str, ...]
    if chance.random() < 0.6:
        name = chance.choice(("run", "whatif", "whatif", "replay"))
        file = "trace.json" if name == "replay" else "small.toml"
        words = (name, f"BESIDE/{file}", "--set", f"{key}={value}", "--json")
    else:
        section, _, name = key.strip().partition(".")
        held = f"[cluster.set]\n'{key}' = '{value}'\n"
        if section not in ("nvlink", "nic", "gpu", "Gpu"):
            held = f"[{section}]\n{name} = '{value}'\n"
        text = "" if section == "cluster" else seeds()["scenario"].text
        (folder / "asked.toml").write_text(f"{text}\n{held}", encoding="utf-8")
        words = ("run", "BESIDE/asked.toml", "--json")
    return command(words, folder)


def circles(chance: Chance, folder: Path) -> str:
    """Files that name themselves or each other where one names another."""
    names = ("a.toml", "b.toml", "c.toml")
    for name in names:
        other = chance.choice((*names, *names, "nowhere.toml", ".", ""))
        text = chance.choice(
            (
                f'extends = "{other}"\n',
                f'extends = "{other}"\n[gpu]\nextends = "{other}"\n',
                f'[cluster]\nfile = "{other}"\n[model]\nname = "llama3.2-1b"\n',
                f'[cluster]\nname = "dgx-h100"\n[model]\nfile = "{other}"\n',
                f'kernels = "{other}"\nextends = "dgx-h100"\n',
                f'format = 1\nbase = "{other}"\n',
                f'defaults = "{other}"\n',
            )
        )
        (folder / name).write_text(text)
    recipe = f"defaults: [{chance.choice(('a', 'recipe', './recipe.yaml'))}]\nx: ${{x}}\ny: ${{z}}\nz: ${{y}}\n"
    (folder / "recipe.yaml").write_text(recipe)
    words = chance.choice(
        (
            ("run", "BESIDE/a.toml", "--json"),
            ("run", "mlp-ddp4", "--cluster", "BESIDE/a.toml", "--json"),
            ("topology", "show", "BESIDE/a.toml"),
            ("run", "BESIDE/recipe.yaml", "--cluster", "BESIDE/b.toml", "--json"),
            ("import-recipe", "BESIDE/recipe.yaml", "--cluster", "dgx-h100"),
            ("collective", "--cluster", "BESIDE/c.toml", "--max-bytes", "1M"),
        )
    )
    return command(words, folder)


SURROUNDINGS: tuple[dict[str, str | None], ...] = (
    *({"COLUMNS": value} for value in ("0", "1", "-5", "10", "x", "1000000", "")),
    *({"LC_ALL": value, "LANG": value} for value in ("C", "POSIX", "tr_TR.UTF-8")),
    {"HOME": None, "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None},
    {"HOME": "/dev/null", "MPLCONFIGDIR": "/dev/null/x"},
    *({"TERM": value} for value in ("dumb", "", "nonsense")),
    {"TMPDIR": "/nowhere", "TEMP": "/nowhere"},
    *({"TZ": "Nowhere/Else"}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}),
    {"OMP_NUM_THREADS": "x", "OPENBLAS_NUM_THREADS": "-1"},
)


@contextmanager
def _surrounded(variables: dict[str, str | None]) -> Iterator[None]:
    kept = {k: v for k, v in os.environ.items() if k not in variables}
    kept |= {key: value for key, value in variables.items() if value is not None}
    with patch.dict(os.environ, kept, clear=True):
        yield


def surroundings(chance: Chance, folder: Path) -> str:
    """A good command where the terminal, the language or a folder is not as usual."""
    words = chance.choice(options.GOOD)
    variables = chance.choice(SURROUNDINGS)
    with _surrounded(variables):
        wrong = command(words, folder)
    return f"{variables} {wrong}" if wrong else ""
