"""`prestep measure`: what it plans, that nothing is fatal to it, and that it runs with next to nothing installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim import plugins
from prestep.sim.errors import InputError
from prestep.validation.measure import bundle, plan, settings
from prestep.validation.measure.options import PROBES, Options, Place, look, names
from tests.sample import together
from tests.validation.machines import place

ROOT = Path(__file__).parents[2]


FAKE_TORCH = '''
"""A PyTorch of one GPU on which nothing works."""
__version__ = "0.0.fake"


class _Properties:
    name, multi_processor_count, total_memory, L2_cache_size, major, minor = "Fake GPU", 2, 10**9, 10**6, 9, 0


class version:
    cuda = "0"


class backends:
    class cudnn:
        version = staticmethod(lambda: 0)


class cuda:
    device_count = staticmethod(lambda: 1)
    get_device_properties = staticmethod(lambda _: _Properties)
    set_device = staticmethod(lambda _: None)
    synchronize = staticmethod(lambda: None)
    class nccl:
        version = staticmethod(lambda: (2, 0, 0))


def device(*_):
    return "fake"
'''


def records_of(path: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a file of a measurement."""
    with zipfile.ZipFile(path) as file:
        return [
            json.loads(line)
            for line in file.read(f"{name}.jsonl").decode().splitlines()
        ]


@together("name", names())
def test_every_probe_says_what_it_is_without_being_imported(name: str) -> None:
    """A probe is a file with TITLE, NEEDS, WEIGHT and measure(session)."""
    probe = plan.probes()[name]
    assert probe.title and probe.needs in ("host", "gpu", "gpus") and probe.weight > 0
    outline = plugins.outlines(PROBES)[name]
    assert "measure" in outline.functions and outline.summary


def test_probes_are_listed_and_planned_without_pytorch(tmp_path: Path) -> None:
    """`prestep list probes --long` and a plan import no PyTorch; what is left out for it says how to get it."""
    code = (
        "import sys; sys.modules['torch'] = None; from prestep import cli\n"
        "from pathlib import Path\n"
        "from prestep.validation.measure import plan\n"
        "from prestep.validation.measure.options import Options, Place\n"
        "for skip in plan.stages(Options(Path('x.zip')), Place())[1]: print(skip.why)\n"
        "cli.main(['list', 'probes', '--long'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "pip install torch" in done.stdout
    assert all(name in done.stdout for name in names())


def test_settings_are_those_of_probes() -> None:
    """Settings are listed under the name of the probe that runs in them."""
    assert settings.SETTINGS.keys() <= set(names())


def test_forced_algorithms_and_channels_run_in_groups_of_their_own() -> None:
    """NCCL reads its environment when it starts: every setting is a stage; probes without one share the first group."""
    stages, skips = plan.stages(Options(Path("x.zip")), place(4))
    by_name = {stage.name: stage for stage in stages}
    assert not skips
    assert by_name["collectives Tree-LL"].variant.env == {
        "NCCL_ALGO": "allreduce:Tree",
        "NCCL_PROTO": "LL",
    }
    assert by_name["collectives ch2"].variant.env == {"NCCL_MAX_NCHANNELS": "2"}
    assert {"gemm", "copies", "collectives", "overlap"} <= set(
        by_name["default"].probes
    )
    assert by_name["collectives default on 2"].ranks == 2


@pytest.mark.parametrize("gpus", [0, 1])
def test_what_a_machine_has_not_is_said(gpus: int) -> None:
    """Without GPUs only the host is measured, with one no collective; the reason is told."""
    stages, skips = plan.stages(
        Options(Path("x.zip")), place(gpus) if gpus else Place(torch="2.11.0")
    )
    ran = {probe for stage in stages for probe in stage.probes}
    assert {"system", "host", "storage"} <= ran and ("gemm" in ran) == bool(gpus)
    assert {skip.why for skip in skips} == {
        "needs 2 GPUs, there is 1" if gpus else "no GPU here"
    }


def test_multicast_stays_off_when_anybody_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """--no-nvls, or the machine's own environment, turns it off everywhere, and no forced NVLS is tried."""
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    allowed = [s.name for s in plan.stages(Options(Path("x.zip")), place(4))[0]]
    assert "collectives NVLS-Simple" in allowed
    for options, env in (
        (Options(Path("x.zip"), nvls=False), None),
        (Options(Path("x.zip")), "0"),
    ):
        if env:
            monkeypatch.setenv("NCCL_NVLS_ENABLE", env)
        assert (
            settings.environment(options, settings.Variant())["NCCL_NVLS_ENABLE"] == "0"
        )
        assert "collectives NVLS-Simple" not in [
            s.name for s in plan.stages(options, place(4))[0]
        ]


def test_a_machine_without_anything_is_measured_all_the_same(tmp_path: Path) -> None:
    """The command needs no GPU: it writes one file that says what it is, what was measured and what not, and why."""
    out = tmp_path / "m.zip"
    asked = [
        "measure",
        "-o",
        str(out),
        "--minutes",
        "0.3",
        "--rehearse",
        "--only",
        "system,host,storage,gemm",
    ]
    result = CliRunner().invoke(cli.main, asked)
    assert result.exit_code == 0, result.output
    with zipfile.ZipFile(out) as file:
        manifest = json.loads(file.read("manifest.json"))
    assert (
        manifest["format"] == "prestep-measured"
        and manifest["rehearsal"]
        and manifest["units"] == "seconds, bytes"
    )
    assert {"system.jsonl", "host.jsonl", "storage.jsonl"} <= set(manifest["files"])
    assert all(row["s"] > 0 for row in records_of(out, "host"))


def test_mistakes_are_told_together(tmp_path: Path) -> None:
    """Wrong options end with exit code 2 and all of them; a file is not replaced without being told to."""
    (tmp_path / "m.zip").write_text("mine")
    asked = [
        "measure",
        "-o",
        str(tmp_path / "m.zip"),
        "--minutes",
        "0",
        "--only",
        "gem",
    ]
    result = CliRunner().invoke(cli.main, asked)
    assert result.exit_code == 2
    assert (
        'did you mean "gemm"?' in result.output
        and "--minutes" in result.output
        and "--force" in result.output
    )
    assert (tmp_path / "m.zip").read_text() == "mine"


@pytest.mark.parametrize(
    "env", [{"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}]
)
def test_a_strange_rank_is_a_mistake(env: dict[str, str]) -> None:
    """Variables of torchrun that are no place in a job are refused by name."""
    with pytest.raises(InputError, match="RANK"):
        look(Options(Path("x.zip")), {**env, "MASTER_ADDR": "here"})


def test_an_error_in_a_probe_is_a_row_and_not_the_end(tmp_path: Path) -> None:
    """With a PyTorch on which every call fails the file is written, and names every probe with its error."""
    for name in ("torch", "torch/distributed", "torch/nn"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "torch" / "__init__.py").write_text(FAKE_TORCH)
    (tmp_path / "torch" / "nn" / "functional.py").touch()
    out, env = (
        tmp_path / "m.zip",
        {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )
    command = [
        sys.executable,
        "-m",
        "prestep.validation.measure",
        "-o",
        str(out),
        "--minutes",
        "0.6",
        "--without",
        "storage,host",
    ]
    done = subprocess.run(
        command,
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    why = {row["probe"]: row["why"] for row in records_of(out, "skipped")}
    assert "AttributeError" in why["launches"] and "AttributeError" in why["copies"]
    assert "bfloat16" in next(
        row["e"] for row in records_of(out, "micro") if row.get("at") == "gemm"
    )
    assert "needs 2 GPUs" in why["collectives"]
    assert str(tmp_path) not in json.dumps(why)


def test_logs_are_packed_without_names_and_traces_within_the_limit(
    tmp_path: Path,
) -> None:
    """Host names and addresses of NCCL's log stay behind; traces beyond --size-limit are named as left out."""
    files = tmp_path / "rank00000" / "files"
    for name, content in (
        ("nccl/n.log", "secret:12:34 [0] NCCL INFO eth0:10.1.2.3<0> NCCL 2.28.9"),
        ("traces/a.gz", "x" * 300_000),
    ):
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_text(content)
    out = tmp_path / "m.zip"
    assert "left out for their size: traces/a.gz" in bundle.pack(
        tmp_path, out, {}, 200_000
    )
    with zipfile.ZipFile(out) as file:
        log = file.read("nccl/n.log").decode()
        assert "traces/a.gz" not in file.namelist()
    assert (
        "secret" not in log
        and "10.1.2.3" not in log
        and "host:12:34 [0] NCCL INFO" in log
        and "2.28.9" in log
    )
    assert records_of(out, "skipped")[0]["what"] == "traces/a.gz"
