"""`prestep collective` as a user types it: backends, settings, sizes, GPUs, and everything that is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from prestep import cli

HOST = ("--cluster", "h200-host-4")
ONE = ("--min-bytes", "1M", "--max-bytes", "1M")


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli.main, ["collective", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), (
        result.exception
    )
    assert "Traceback" not in result.stderr
    return result


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(
    ("backend", "op", "algo"),
    [
        ("nccl", "all_reduce", "ring"),
        ("gloo", "all_reduce", "gloo"),
        ("gloo", "all-to-all", "gloo"),
        ("gloo", "reduce", "gloo"),
        ("nvshmem", "put", "one_sided"),
        ("nvshmem", "get", "one_sided"),
        ("NVSHMEM", "all_to_all", "one_sided"),
    ],
)
def test_every_backend_is_reached_by_name(backend: str, op: str, algo: str) -> None:
    """The algorithm of the rows is the backend's; text, --explain and --json agree on it."""
    (row,) = rows(*HOST, *ONE, "--backend", backend, "--op", op)
    assert (row["algo"], row["bytes"]) == (algo, 2**20) and row["time"] > 0
    told = run(*HOST, *ONE, "--backend", backend, "--op", op, "--explain")
    assert told.exit_code == 0 and algo in told.stdout and "evidence: " in told.stdout


def test_gloo_is_slower_for_gpu_tensors_and_nvshmem_faster_for_small_puts() -> None:
    """Copies to the host cost time; a put has no rendezvous."""
    gpu, cpu = (
        rows(*HOST, *ONE, "--backend", "gloo", "--set", f"nccl.tensors={t}")[0]["time"]
        for t in ("gpu", "cpu")
    )
    assert cpu < gpu
    small = (*HOST, "--min-bytes", "8", "--max-bytes", "8")
    assert (
        rows(*small, "--backend", "nvshmem", "--op", "put")[0]["time"]
        < rows(*small, "--op", "send")[0]["time"]
    )


def test_between_hosts_a_proxy_posts_later_than_the_gpu() -> None:
    """nccl.transport says who posts to the NIC."""
    far = (
        "--cluster",
        "dgx-h100-superpod",
        "--op",
        "put",
        "--backend",
        "nvshmem",
        "--gpus",
        "0,8",
        *ONE,
    )
    gpu, proxy = (
        rows(*far, "--set", f"nccl.transport={t}")[0] for t in ("ibgda", "proxy")
    )
    assert gpu["time"] < proxy["time"] and (gpu["proto"], proxy["proto"]) == (
        "ibgda",
        "proxy",
    )


def test_making_a_communicator_is_told_by_rank_count() -> None:
    """2, 4, 8 and all ranks; more ranks take longer; parts add up to the first one."""
    found = rows("--cluster", "dgx-h100", "--op", "init")
    assert [row["ranks"] for row in found] == [2, 4, 8]
    assert all(
        sum(row["parts"].values()) == pytest.approx(row["time"]) for row in found
    )
    assert found[0]["time"] < found[2]["time"] and found[0]["time_again"] < 0.25
    assert (
        "bootstrap"
        in run(
            "--cluster", "dgx-h100", "--op", "init", "--ranks", "8", "--explain"
        ).stdout
    )


def test_settings_and_links_change_by_set() -> None:
    """Through host memory instead of NVLink; slower links; NVLink SHARP where the user says so."""
    (direct,), (memory,), (slow,) = (
        rows(*HOST, "--min-bytes", "64M", "--max-bytes", "64M", *extra)
        for extra in (
            (),
            ("--set", "nccl.p2p_disable=true"),
            ("--set", "nvlink.bandwidth=0.5x"),
        )
    )
    assert (
        memory["time"] > 5 * direct["time"]
        and 1.5 < slow["time"] / direct["time"] < 2.5
    )
    assert (
        rows(
            "--cluster", "dgx-h100", *ONE, "--set", "nccl.nvls=true", "--algo", "nvls"
        )[0]["algo"]
        == "nvls"
    )


def test_gpus_are_named_or_numbered() -> None:
    """0-1, gpu0,gpu1 and --ranks 2 are the same two."""
    times = [
        rows(*HOST, *ONE, *said)[0]["time"]
        for said in (("--gpus", "0-1"), ("--gpus", "gpu0,gpu1"), ("--ranks", "2"))
    ]
    assert len(set(times)) == 1


def test_sizes_that_do_not_divide_are_rounded_as_nccl_tests_does() -> None:
    """A gather of three ranks has parts of a multiple of 16 bytes, an all-reduce elements of four; a note says so."""
    (row,) = rows(
        "--cluster", "h200-host-4", "--ranks", "3", "--op", "all_gather", *ONE
    )
    assert row["bytes"] == 1048560 and "rounded down" in row["notes"][-1]
    (row,) = rows(*HOST, "--min-bytes", "1001", "--max-bytes", "1001")
    assert row["bytes"] == 1000
    (row,) = rows(*HOST, "--op", "all_gather", "--min-bytes", "8", "--max-bytes", "8")
    assert row["bytes"] == 8 and "nothing to send" in row["notes"][-1]


def test_list_tells_a_line_about_every_collective() -> None:
    """`list collectives --long`: names as without it, each with a sentence."""
    names = CliRunner().invoke(cli.main, ["list", "collectives"]).stdout.splitlines()
    assert {"ring", "gloo", "one_sided", "creation", "pairwise"} <= set(names)
    told = (
        CliRunner()
        .invoke(cli.main, ["list", "collectives", "--long"])
        .stdout.splitlines()
    )
    assert [line.split()[0] for line in told] == names and all(
        len(line.split()) > 5 for line in told
    )


FALLBACKS = {
    "an algorithm that the operation has not": (
        ("--op", "broadcast", "--algo", "tree"),
        "broadcast has no tree",
    ),
    "an old NCCL ignores what it cannot": (
        ("--algo", "nvls", "--set", "nccl.version=2.21.5"),
        "nvls was asked for and ignored",
    ),
    "PAT before it was made": (
        ("--op", "all_gather", "--algo", "pat", "--set", "nccl.version=2.22.3"),
        "it came with 2.23",
    ),
}


@pytest.mark.parametrize("case", FALLBACKS)
def test_what_nccl_would_fall_back_from_is_exit_0_with_a_note(case: str) -> None:
    """The rows are those of what runs instead, and a note says what was asked for."""
    arguments, said = FALLBACKS[case]
    result = run(*HOST, *ONE, *arguments)
    assert (
        result.exit_code == 0 and "note: " in result.stdout and said in result.stdout
    ), result.stdout + result.stderr


def test_a_version_too_old_for_an_algorithm_is_refused_by_a_strict_one(
    tmp_path: Path,
) -> None:
    """PAT with 2.24 on hosts of one GPU runs; with several GPUs per host it does not."""
    two = (
        "--cluster",
        "dgx-h100-superpod",
        "--op",
        "all_gather",
        "--algo",
        "pat",
        *ONE,
    )
    assert run(*two, "--gpus", "0,8").exit_code == 0
    refused = run(*two, "--gpus", "0-15")
    assert refused.exit_code == 2 and "one GPU per host" in refused.stderr
