"""Devices without end where a file should be: refused like any file that is too large, whoever reads it."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

ZERO = Path("/dev/zero")
#: Bytes of memory that a command may take.
MEMORY = 2 * 2**30
SCENARIO = """
[cluster]
name = "dgx-h100"
[model]
name = "llama3-8b"
[training]
seq_len = 1024
[parallel]
dp = 8
data_parallel = "fsdp"
"""


@pytest.mark.skipif(not ZERO.exists(), reason="needs /dev/zero")
@pytest.mark.parametrize(
    "words",
    [
        ("run", "/dev/zero"),
        ("whatif", "/dev/zero", "--set", "nvlink.bandwidth=2x", "--function", "f"),
        ("doctor", "nccl", "/dev/zero", "--cluster", "rail-h100", "--op", "all_reduce"),
        ("run", "job.toml", "--cluster", "zero.toml"),
        ("run", "job.toml", "--set", "placement.hostfile=/dev/zero"),
        ("run", "zero.toml"),
        ("plot", "/dev/zero", "--x", "parallel.dp", "-o", "x.svg"),
    ],
)
def test_a_device_without_end_is_refused(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text(SCENARIO)
    (tmp_path / "zero.toml").symlink_to(ZERO)
    done = subprocess.run(
        [sys.executable, "-m", "prestep", *words],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
