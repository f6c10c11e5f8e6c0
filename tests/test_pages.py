"""Every block of README, docs/ and examples/ is run: commands in order in one folder a page, Python, files, output.

TOML is loaded as what it is in tests/test_docs.py; tests/pages.py says how a page marks what is special.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import re
import runpy
import shlex
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from click.testing import CliRunner

from prestep import cli
from tests.pages import PAGES, ROOT, Block, blocks, name_of
from tests.sample import together

LANGUAGES = {"sh", "text", "toml", "ini", "json", "yaml", "python", "{toctree}"}
#: Blocks that cannot run here, by page. A page that gains one says why above it, and is counted here.
NOT_RUN = {
    "README.md": 1,
    "CONTRIBUTING.md": 1,
    "docs/accuracy.md": 1,
    "docs/agents.md": 1,
    "docs/capture.md": 3,
    "docs/measure.md": 3,
    "docs/data-card.md": 1,
    "docs/extending.md": 1,
    "docs/index.md": 1,
    "docs/install.md": 1,
    "docs/peers.md": 1,
    "docs/performance.md": 1,
    "docs/published.md": 1,
    "docs/tutorial.md": 1,
    "docs/how-to/calibrate-machine.md": 1,
    "docs/how-to/accept-a-cluster.md": 2,
    "docs/how-to/replay-trace.md": 1,
}
TRACES = ROOT / "lab" / "cases" / "traces"
#: Pages whose commands take more than a few seconds.
SLOW = (
    "docs/layouts.md",
    "docs/whatif.md",
    "docs/tutorial.md",
    "docs/how-to/accuracy-in-ci.md",
    "docs/how-to/calibrate-machine.md",
    "docs/how-to/compare-fabrics.md",
    "docs/traces.md",
    "docs/reliability.md",
    "docs/report.md",
    "docs/collectives.md",
    "docs/coming-from.md",
    "docs/gallery.md",
    "docs/calibrate.md",
    "docs/how-to/replay-trace.md",
)
#: Of these those that predict large jobs, whose commands other pages show by day as well.
AT_NIGHT = (
    "docs/coming-from.md",
    "docs/gallery.md",
    "docs/how-to/calibrate-machine.md",
    "docs/how-to/compare-fabrics.md",
)
#: What a command has more here than on its page: all layouts are searched in tests/sim/search.
SHORTER = {
    "prestep search 8b.toml": " --over parallel.pp=1 --over training.recompute=none"
}


def nccl_log(path: Path) -> None:
    """What nccl-tests would print on the machine that prestep predicts, cut down to the columns that count."""
    rows = predicted("all_reduce")
    head = (
        "all_reduce_perf -b 1M -e 512M -f 2 -g 8\n#  size(B)  time(us)  algbw(GB/s)\n"
    )
    path.write_text(
        head
        + "".join(
            f"{r['bytes']:.0f} {r['time'] * 1e6:.2f} {r['algbw'] / 1e9:.2f}\n"
            for r in rows
        )
    )


def json_lines(path: Path) -> None:
    rows = predicted("all_gather")
    told = [{"kind": "env", "label": "default", "nccl": "2.28.9", "env": {}}]
    told += [
        {
            "kind": "collective",
            "label": "default",
            "op": "all_gather",
            "ranks": 8,
            "bytes": int(r["bytes"]),
            "s": r["time"],
        }
        for r in rows
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in told))


def predicted(op: str) -> list[dict[str, float]]:
    words = f"collective --cluster dgx-h100 --op {op} --min-bytes 1M --max-bytes 512M --json".split()
    rows: list[dict[str, float]] = json.loads(
        CliRunner().invoke(cli.main, words).stdout
    )
    return rows


def constants(path: Path) -> None:
    nccl_log(path.with_suffix(".log"))
    code, told = invoke(
        f"prestep calibrate {path.with_suffix('.log')} -o {path} --cluster dgx-h100 --op all_reduce"
    )
    assert code == 0, told


def measured(path: Path) -> None:
    """The measurement of examples/ without kernels and collectives, whose fits take a minute (docs/measure.md has all)."""
    kept = ("manifest", "system", "host", "storage", "training", "probes")
    with (
        zipfile.ZipFile(ROOT / "examples" / "measured" / "h200x4.zip") as whole,
        zipfile.ZipFile(path, "w") as part,
    ):
        for name in filter(lambda name: name.startswith(kept), whole.namelist()):
            part.writestr(name, whole.read(name))


def copied(source: Path) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(source.read_bytes())


#: Files that a reader has: they are made where a page's commands name them.
FILES: dict[str, Callable[[Path], object]] = {
    "run/rank0.json.gz": copied(TRACES / "125m-ddp4-b4.default.rank0.pt.trace.json.gz"),
    "rank0.json.gz": copied(TRACES / "1b-single-b2.default.rank0.pt.trace.json.gz"),
    "mine.zip": measured,
    "all_reduce.log": nccl_log,
    "job.capture": copied(ROOT / "tests" / "contracts" / "data" / "llama-1b.capture"),
    "all_gather.json": json_lines,
    "nccl-constants.toml": constants,
}


def room(page: list[Block], folder: Path) -> None:
    """The folder in which a page's commands run: this tree's folders, and the files that they name."""
    for name in ("examples", "validation", "lab"):
        (folder / name).symlink_to(ROOT / name)
    for block in page:
        if block.file:
            objects = block.language == "json"
            text = (
                "".join(json.dumps(value) + "\n" for value in values(block.text))
                if objects
                else block.text
            )
            (folder / block.file).write_text(text, encoding="utf-8")
    said = " ".join(
        command
        for block in page
        if block.language == "sh"
        for command in block.commands
    )
    for name, make in FILES.items():
        if re.search(
            rf"(?<![\w/]){re.escape(name if name[:4] != 'run/' else 'run/')}", said
        ):
            (folder / name).parent.mkdir(exist_ok=True)
            make(folder / name)


def invoke(command: str) -> tuple[int, str]:
    """Exit code and output of a command line, > FILE obeyed."""
    line, _, target = command.partition(" > ")
    words = shlex.split(line)
    assert words[0] in ("prestep", "python"), (
        f"a test cannot run {words[0]}: mark the block"
    )
    if words[0] == "prestep":
        done = CliRunner().invoke(cli.main, words[1:])
        code, text, told = done.exit_code, done.stdout, done.output
    else:
        code, text = module(words[2:])
        told = text
    if target:
        Path(target.strip()).write_text(text, encoding="utf-8")
    return code, told


def module(words: list[str]) -> tuple[int, str]:
    """`python -m`, in this process."""
    before, sys.argv = sys.argv, words
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return 0, ""
    except SystemExit as ended:
        return (ended.code if isinstance(ended.code, int) else bool(ended.code)), str(
            ended.code or ""
        )
    finally:
        sys.argv = before


def shape(line: str) -> str:
    """A line of output without figures, units and bars, which move with the constants."""
    line = re.sub(r"[\u2580-\u259f]+", "", line)
    line = re.sub(
        r"[-+]?\d[\d.,  ]*( ?(s|ms|us|ns|min|[KMGT]i?B|GB/s|%))?(?![\w])", "#", line
    )
    return " ".join(line.split())


def run(block: Block, names: dict[str, object], last: str) -> str:
    """Runs a block; what its last command, or its Python, printed."""
    if block.language == "sh":
        for command in (
            part.strip() for line in block.commands for part in line.split("&&")
        ):
            more = (
                text for begin, text in SHORTER.items() if command.startswith(begin)
            )
            code, last = invoke("".join((command, *more)))
            wanted = (
                (0, 1) if command.startswith("prestep validate") else (block.exit_code,)
            )
            assert code in wanted, (
                f"{block.page}:{block.line}: {command}\nexit code {code}\n{last}"
            )
            assert "Traceback" not in last
    elif block.language == "python" and not block.file:
        with contextlib.redirect_stdout(io.StringIO()) as told:
            exec(compile(block.text, f"{block.page}:{block.line}", "exec"), names)
        last = told.getvalue()
    elif block.mark == "printed":
        lines = {shape(line) for line in last.splitlines()}
        for line in block.text.splitlines():
            assert line.strip() == "..." or shape(line) in lines, (
                f"{block.page}:{block.line}: not printed: {line}\n{last}"
            )
    return last


def values(text: str) -> list[object]:
    """The JSON values of a block, which may follow each other."""
    found, at, decoder = list[object](), 0, json.JSONDecoder()
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found


def pages_to_run() -> list[object]:
    """Pages with something to run."""
    own = (
        "README.md",
        "examples/README.md",
    )  # a test a command: tests/test_readme.py, tests/test_docs.py
    pages = [page for page in PAGES if name_of(page) not in own]
    live = [
        page
        for page in pages
        if any(b.language in ("sh", "python") and not b.not_run for b in blocks(page))
    ]
    return [pytest.param(p, id=name_of(p), marks=_marks(name_of(p))) for p in live]


def _marks(name: str) -> list[pytest.MarkDecorator]:
    chosen = [(pytest.mark.slow, SLOW), (pytest.mark.night, AT_NIGHT)]
    return [mark for mark, pages in chosen if name in pages]


@pytest.mark.daily
@pytest.mark.usefixtures("known_reports")
@pytest.mark.parametrize("page", pages_to_run())
def test_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands end with the code they should (validate: 0 or 1), Python runs, and what is said to be printed is."""
    found = [block for block in blocks(page) if not block.not_run]
    monkeypatch.chdir(tmp_path)
    room(found, tmp_path)
    module_ = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module_)
    last = ""
    for block in found:
        last = run(block, vars(module_), last)


@together("page", PAGES)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A language that a test reads; JSON and YAML parse; a mark is one of those known."""
    for block in blocks(page):
        where = f"{block.page}:{block.line}"
        assert block.language in LANGUAGES, (
            f"{where}: {block.language or 'no language'}"
        )
        assert re.fullmatch(
            r"|not run: .{10,}|file: [\w./-]+|exit \d+|printed|[\w ]+: \w+", block.mark
        ), where
        if block.language == "json":
            assert values(block.text), where
        if block.language == "ini":
            parser = configparser.ConfigParser()
            parser.read_string(block.text)
            assert parser.sections(), where
        if block.language == "yaml":
            assert yaml.safe_load(block.text), where


def test_no_fence_is_overlooked() -> None:
    """Every line that begins a fence belongs to a block that was found."""
    for page in PAGES:
        fences = re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(list(blocks(page))), page


def test_blocks_that_do_not_run_are_counted() -> None:
    """Each says why, and their number by page is that written down here."""
    found = Counter(
        block.page for page in PAGES for block in blocks(page) if block.not_run
    )
    assert dict(found) == NOT_RUN


def test_a_line_is_compared_without_its_figures() -> None:
    """Figures and bars may move, words may not."""
    assert (
        shape("  compute   245.9 ms  92.3 %  ████▋")
        == shape("  compute  13.2 s  9.1 %")
        == "compute # #"
    )
    assert shape("nvlink  1 % faster saves 406 us") != shape(
        "spine  1 % faster saves 406 us"
    )
