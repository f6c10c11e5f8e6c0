"""Devices without end where a file should be: refused like any file that is too large, whoever reads it."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import in_turn

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


def bounded() -> None:
    """No more memory for this process and those that it starts."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


@pytest.fixture(scope="module")
def prestep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[in_turn.Commands]:
    """Commands with little memory, in a folder with a scenario, a link to the device, and a cluster that is one."""
    folder = tmp_path_factory.mktemp("devices")
    (folder / "job.toml").write_text(SCENARIO)
    (folder / "zero.toml").symlink_to(ZERO)
    env = {"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    printed = folder / "printed"
    with in_turn.commands(sys.executable, printed, folder, env, bounded) as commands:
        yield commands


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
    words: tuple[str, ...], prestep: in_turn.Commands
) -> None:
    code, _, err = prestep.end(*words)
    assert code == 2, err
    assert "Traceback" not in err
