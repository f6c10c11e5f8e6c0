"""How commands end when it is not their input that is wrong: streams that cannot be written, Ctrl-C, folders."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from prestep import cli
from prestep.sim.commands._shared import EXIT_INTERRUPT, WORKER_KILLED, _outside_reason
from prestep.sim.errors import InputError
from prestep.sim.files import write_bytes
from prestep.sim.studies.grid import Spec
from prestep.sim.studies.sweep import SUM, _missing, _sum
from prestep.sim.tools import crash
from prestep.sim.tools.workers import Workers
from prestep.topologies.edit.hostfile import expand
from prestep.validation.report.report import _printable

HERE = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "prestep"]
COLLECTIVE = [
    "collective",
    "--op",
    "all_reduce",
    "--cluster",
    "h200-host-4",
    "--max-bytes",
    "1MiB",
]


def _run(arguments: list[str]) -> Result:
    """The command in this process, where neither its streams nor its end are the point."""
    return CliRunner().invoke(cli.main, arguments)


def _redirected(
    arguments: list[str], shell: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, whose streams a shell redirects."""
    given = os.environ | {"PYTHONPATH": str(HERE)} | environment
    line = f'exec "$@" {shell}'
    called = ["bash", "-c", line, "bash", *COMMAND, *arguments]
    return subprocess.run(
        called, capture_output=True, text=True, cwd=HERE, env=given, timeout=6000
    )


def test_a_full_disk_is_said() -> None:
    """What stdout cannot take is no mistake of prestep."""
    ended = _redirected(COLLECTIVE, "> /dev/full")
    assert ended.returncode == 2
    assert "stdout: No space left on device" in ended.stderr


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-"])
def test_closed_streams_are_no_crash(closed: str) -> None:
    """Services start commands without streams."""
    assert _redirected(COLLECTIVE, closed).returncode == 0


def test_an_encoding_without_bars_shows_question_marks() -> None:
    """latin-1 has no blocks; the figures are there all the same."""
    ended = _redirected(["run", "mlp-ddp4"], PYTHONIOENCODING="latin-1")
    assert ended.returncode == 0 and "step time" in ended.stdout and "?" in ended.stdout


def test_ctrl_c_ends_as_signals_do() -> None:
    """130, a word, no traceback; the whole group gets the signal, as from a terminal."""
    process = subprocess.Popen(
        [*COMMAND, "run", "llama8b-fsdp4", "-v", "--replicas", "500"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE,
        env=os.environ | {"PYTHONPATH": str(HERE)},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None and process.stderr.readline()  # it is at work
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == EXIT_INTERRUPT
    assert "Traceback" not in said


def test_ctrl_c_while_a_string_is_executed_is_no_other_end(tmp_path: Path) -> None:
    """Dataclasses are made by strings: Python takes an interrupt there for one that nobody caught."""
    program = [
        "import signal",
        "from prestep.sim.tools.process import keep_the_exit_code",
        "try:",
        "    exec('signal.raise_signal(signal.SIGINT)')",
        "except KeyboardInterrupt:",
        "    keep_the_exit_code()",
        f"    raise SystemExit({EXIT_INTERRUPT})",
    ]
    (tmp_path / "interrupted.py").write_text("\n".join(program))
    ended = subprocess.run(
        [sys.executable, "-m", "interrupted"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(HERE)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert ended.returncode == EXIT_INTERRUPT


def test_a_damaged_run_of_a_sweep_is_run_again(tmp_path: Path) -> None:
    """A file that is empty, another run's, or changed since it was written counts as missing."""
    row = {"key": "whole", "step_time": 1.0}
    whole = json.dumps({**row, SUM: _sum(row)})
    texts = {
        "whole": whole,
        "empty": "",
        "other": whole,
        "changed": whole.replace("1.0", "2.0").replace("whole", "changed"),
    }
    (tmp_path / "runs").mkdir()
    for key, text in texts.items():
        (tmp_path / "runs" / f"{key}.json").write_text(text)
    wanted = [Spec(key, "x.toml", ()) for key in (*texts, "gone")]
    missing = [spec.key for spec in _missing(wanted, tmp_path)]
    assert missing == ["empty", "other", "changed", "gone"]


def test_the_lock_of_a_sweep_empties_nobody_elses_file(tmp_path: Path) -> None:
    """A link in the place of the lock is refused, and what it names stays as it is."""
    precious, out = tmp_path / "precious", tmp_path / "out"
    precious.write_text("text")
    out.mkdir()
    (out / ".lock").symlink_to(precious)
    arguments = ["sweep", "mlp-ddp4", "--grid", "training.micro_batch=8", "-o", str(out)]  # fmt: skip
    ended = _run(arguments)
    assert ended.exit_code == 2 and str(out / ".lock") in ended.stderr
    assert precious.read_text() == "text"


def test_a_full_folder_is_the_users_to_mend() -> None:
    """Where nothing can be written, the path is named."""
    with pytest.raises(InputError, match="/proc/nowhere"):
        write_bytes(Path("/proc/nowhere"), b"x")


def test_host_lists_are_bounded_as_a_whole() -> None:
    """Three ranges of a thousand are a billion names."""
    with pytest.raises(InputError, match="at most 100000 hosts"):
        expand("n[0-999][0-999][0-999]", "here")
    assert len(expand("n[0-9][0-9]", "here")) == 100


@pytest.mark.parametrize(
    "change",
    [
        "gpu[0-99999999999].clock=0.5x",
        "nvlink[0-999999999999999999].bandwidth=0.5x",
    ],
)
def test_ranges_reach_beyond_the_cluster_without_end(change: str) -> None:
    """A range is cut at what there is."""
    ended = _run(["run", "mlp-ddp4", "--set", change])
    assert ended.exit_code in (0, 2) and "mistake of its own" not in ended.stderr


def test_signs_that_xml_forbids_are_replaced() -> None:
    """Names of rows come from files of others."""
    text = _printable("a\x00b\x1b[0m\ud800c\ttab")
    assert text == "a�b�[0m�c\ttab"
    ElementTree.fromstring(f"<a>{text}</a>")


def test_dollars_in_a_name_are_no_formula(tmp_path: Path) -> None:
    """matplotlib would read `$\\frac$` as mathematics, and fail."""
    cluster, picture = tmp_path / "a$\\frac$b.toml", tmp_path / "x.svg"
    cluster.write_text('extends = "dgx-h100"\n')
    ended = _run(["topology", "show", str(cluster), "--picture", str(picture)])
    assert ended.exit_code == 0, ended.stderr
    assert "\\frac" in picture.read_text()


def test_files_are_written_though_the_reader_of_stdout_is_gone(tmp_path: Path) -> None:
    """`run --report F --trace G | head`: a page longer than the pipe ended the command before its files."""
    asked = {"--report": "r.html", "--trace": "t.json", "--timeline": "t.parquet"}
    options = [word for key, file in asked.items() for word in (key, tmp_path / file)]
    read, write = os.pipe()
    os.close(read)
    command = [*COMMAND, "run", "mlp-ddp4", *map(str, options)]
    ended = subprocess.run(command, cwd=HERE, stdout=write, timeout=6000)
    os.close(write)
    assert ended.returncode == 141
    assert {path.name for path in tmp_path.iterdir()} == set(asked.values())


def test_a_sweep_of_which_every_run_is_refused_says_so(tmp_path: Path) -> None:
    """As `run` of each does. One good run, and the sweep is good."""

    def swept(values: str) -> int:
        grid = ["--grid", f"parallel.dp={values}", "-o", str(tmp_path / values)]
        return _run(["sweep", "mlp-ddp4", *grid, "--executor", "threads"]).exit_code

    assert swept("3,5") == 2
    assert swept("3,4") == 0


def test_names_of_files_may_have_any_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/a\xff")
    grid = ["--grid", "nvlink.bandwidth=1x,2x", "--executor", "threads"]
    for arguments in (
        ["sweep", "mlp-ddp4", *grid, "-o", name],
        ["plot", name, "--x", "nvlink.bandwidth", "-o", name + ".png"],
        ["run", "mlp-ddp4", "--timeline", name + ".parquet", "--trace", name + ".json"],
        ["convert", name + ".json", "-o", name + "2.parquet"],
        ["convert", name + ".json", "-o", name + "2.arrow"],
    ):
        ended = _run(arguments)
        assert ended.exit_code == 0, ended.stderr
        assert os.path.exists(arguments[-1]) or "-o" not in arguments


def test_a_worker_that_is_killed_is_said() -> None:
    """The system kills processes where memory runs out: no mistake of prestep's, and nothing to report."""
    with Workers(1) as pool:
        killed = pool.submit(os._exit, 1).exception()
    assert isinstance(killed, BrokenProcessPool)
    assert _outside_reason(killed) == WORKER_KILLED
    assert not _outside_reason(ValueError("prestep's own"))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_a_machine_that_has_no_more_is_no_mistake_of_prestep(number: int) -> None:
    reason = _outside_reason(OSError(number, os.strerror(number)))
    assert os.strerror(number).lower() in reason and "--jobs" in reason
    assert "memory" in _outside_reason(MemoryError())


def test_what_is_sent_after_a_crash_has_no_values_of_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ["/opt/bin/prestep", "run", "job.toml", "--set", "a.token=hf_secret"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--price=3", "-o", "my file"])
    assert crash.command() == "prestep run ... --set ... --price=... -o ..."
