"""What kernels and collectives cost each other is fitted to overlap rows, written, and used by a run."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from prestep import cli
from prestep.sim.collectives import constants
from prestep.sim.costs.interference import BUNDLED, OVERLAP, laid_over
from prestep.sim.graph.kernel import Kernel
from prestep.validation.fit import overlap
from prestep.validation.formats.collective_reader import read_lines

TRUE = {"communication": 1.6, "free": 8.3e14}
PRODUCTS = ("gemm_4096x4096x4096", "gemm_8192x4096x4096")
ALONE = {
    "gemm_4096x4096x4096": 205e-6,
    "gemm_8192x4096x4096": 400e-6,
    "add_2^28_bf16": 340e-6,
    "mul_2^28_bf16": 340e-6,
}
MIB = 2**20


def line(
    compute: str,
    size: int,
    beside: tuple[float, float] = (1.0, 1.0),
    op: str = "all_reduce",
) -> dict[str, Any]:
    return {
        "kind": "overlap",
        "compute": compute,
        "op": op,
        "ranks": 4,
        "bytes": size,
        "compute_alone_s": ALONE[compute],
        "comm_alone_s": size * 4.5e-12 + 2e-5,
        "compute_overlapped_s": beside[0],
        "comm_overlapped_s": beside[1],
    }


def measured(
    tmp: Path, computes: Sequence[str], truth: dict[str, Any], sizes: Sequence[int]
) -> Path:
    """Overlap rows of a machine with these constants, as JSON lines."""
    path = tmp / "overlap.jsonl"
    made = [line(compute, size) for size in sizes for compute in computes]
    path.write_text("\n".join(map(json.dumps, made)))
    rows = read_lines(path)[1]
    items = [overlap._item(row, 0, constants.load("h200")) for row in rows]
    exact = [
        line(
            one["compute"],
            one["bytes"],
            tuple(2.718281828459045**r for r in item.residuals(truth)),
        )
        for one, item in zip(made, items, strict=True)
    ]
    path.write_text("\n".join(map(json.dumps, exact)))
    return path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli.main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), (
        result.exception
    )
    return result


@lru_cache(maxsize=1)
def fitted(tmp: Path) -> tuple[Result, dict[str, Any]]:
    path = measured(tmp, PRODUCTS, TRUE, [k * 64 * MIB for k in (2, 3, 4)])
    result = run("calibrate", str(path), "-o", str(tmp / "mine.toml"))
    return result, tomllib.loads(
        (tmp / "mine.toml").read_text()
    ) if result.exit_code == 0 else {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("overlap")


def test_constants_are_found_again(folder: Path) -> None:
    """Rows made with other constants give those constants back, and both errors are printed by side and half."""
    result, table = fitted(folder)
    assert result.exit_code == 0, result.output
    assert table["overlap"]["communication"] == pytest.approx(1.6, rel=0.03)
    assert table["overlap"]["free"] == pytest.approx(8.3e14, rel=0.03)
    for side in ("kernels", "collectives"):
        assert (
            result.output.count(f"overlap: {side}") == 4
        )  # fitted and held out, before and after
    assert "fitted: overlap.communication, overlap.free" in result.output


def test_the_file_says_nothing_of_what_no_row_showed(folder: Path) -> None:
    """Without rows of collectives by themselves the file has no table but overlap, and its head both errors."""
    assert set(fitted(folder)[1]) == {"overlap"}
    head = (folder / "mine.toml").read_text().splitlines()[:6]
    assert any("beside each other" in text and "held out" in text for text in head)


def test_former_names_of_kernels_are_refused() -> None:
    """A factor that no kernel reads would change nothing, silently."""
    said = {"rms_norm_fwd": 2.0, "embedding_fwd": 2.0, "add": 2.0, "mul strided": 2.0}
    (norm, lookup) = OVERLAP.mistakes("c.toml", "", {"factor": said})
    assert (norm.key, norm.expected) == ("factor.rms_norm_fwd", '"_fused_rms_norm"')
    assert (lookup.key, lookup.expected) == ("factor.embedding_fwd", '"embedding"')


def test_a_run_uses_the_file(folder: Path) -> None:
    """A cluster file that names the constants changes a step with overlap; one that does not, changes nothing."""
    fitted(folder)
    (folder / "slow.toml").write_text(
        "[overlap]\ncommunication = 4.0\ndefault = 5.0\nfactor = { add = 5.0 }\n"
    )
    for name in ("mine", "slow"):
        (folder / f"{name}-cluster.toml").write_text(
            f'extends = "h200-host-4"\nnccl = "{name}.toml"\n'
        )
    (folder / "plain-cluster.toml").write_text('extends = "h200-host-4"\n')
    times = {}
    for name in ("plain", "mine", "slow"):
        scenario = folder / f"{name}-run.toml"
        scenario.write_text(
            f'[cluster]\nfile = "{name}-cluster.toml"\n[model]\nname = "llama3-1b-plain"\n'
            "[training]\nseq_len = 1024\nmicro_batch = 2\n[parallel]\ndp = 4\n"
        )
        result = run("run", str(scenario), "--json")
        assert result.exit_code == 0, result.output
        times[name] = json.loads(result.stdout)["step_time"]
    assert times["plain"] < times["slow"] and times["mine"] != times["plain"]


def test_too_few_rows_are_said_in_words(folder: Path, tmp_path: Path) -> None:
    """What lacks rows stays as it was, with its number of rows; with nothing to fit no file is written."""
    path = measured(tmp_path, (*PRODUCTS, "add_2^28_bf16"), TRUE, [256 * MIB])
    result = run("calibrate", str(path), "-o", str(tmp_path / "mine.toml"))
    assert result.exit_code == 2 and not (tmp_path / "mine.toml").exists()
    assert (
        "too few overlap rows" in result.output
        and "overlap.communication (2 rows)" in result.output
    )
    mixed = measured(
        tmp_path, (*PRODUCTS, "add_2^28_bf16"), TRUE, [192 * MIB, 256 * MIB]
    )
    result = run("calibrate", str(mixed), "-o", str(tmp_path / "mine.toml"))
    assert result.exit_code == 0 and "fitted: overlap.communication" in result.output
    assert "add" not in tomllib.loads((tmp_path / "mine.toml").read_text())[
        "overlap"
    ].get("factor", {})


def test_elementwise_kernels_have_constants_of_their_own(tmp_path: Path) -> None:
    """Rows beside large additions fit the addition's factor and what streams cost a collective, and nothing else."""
    truth = {"streaming": 2.0, "factor": {"add": 1.7}}
    path = measured(
        tmp_path, ("add_2^28_bf16",), truth, [k * 64 * MIB for k in range(2, 7)]
    )
    fit = overlap.fit(read_lines(path)[1], constants.load("h200"))
    assert fit.fitted == ("factor.add", "streaming")
    assert fit.table["streaming"] == pytest.approx(2.0, rel=0.05)
    assert fit.table["factor"]["add"] == pytest.approx(1.7, rel=0.05)


def test_held_out_rows_move_nothing(folder: Path) -> None:
    """However wrong every third row is, the constants are the same."""
    fitted(folder)
    rows = read_lines(folder / "overlap.jsonl")[1]
    spoilt = [
        replace(row, comm_beside=row.comm_beside * (5 if at % 3 == 2 else 1))
        for at, row in enumerate(rows)
    ]
    table = constants.load("h200")
    assert overlap.fit(spoilt, table).table == overlap.fit(rows, table).table


def test_without_a_table_the_constants_are_the_bundled_ones() -> None:
    """An empty table changes nothing, and a partial one only what it names."""
    assert laid_over({}) == BUNDLED
    told, add = (
        laid_over({"factor": {"add": 3.0}, "streaming": 2.0}),
        Kernel("aten add", (2**28,), bytes=6.0 * 2**28),
    )
    assert (
        told.slowdown(add, 24, 132) == 3.0
        and told.known(Kernel("silu", (1,))) == BUNDLED.factor["silu"]
    )
    assert told.contention(add) == 2.0
    small, product = (
        Kernel("aten add", (2**20,), bytes=6.0 * 2**20),
        Kernel("aten mm", (8192, 8192, 8192)),
    )
    assert (
        told.contention(small)
        == told.contention(product)
        == told.contention()
        == BUNDLED.communication
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[overlap]\ncomunication = 1.2", "communication"),
        ("[overlap]\ncommunication = 0.5", "at least 1"),
        ("[overlap]\nfactor = 3", "overlap.factor"),
        ('[overlap]\nfactor = { add = "x" }', "overlap.factor.add"),
        ("[overlap]\nstatic = inf", "overlap.static"),
        ("overlap = 3", "a table"),
        ("[overlaps]\nstatic = 2", '"overlap"'),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """Unknown keys and what is no factor are named, with the file."""
    path = tmp_path / "wrong.toml"
    path.write_text(text + "\n")
    result = run(
        "collective",
        "--cluster",
        "h200-host-4",
        "--nccl-constants",
        str(path),
        "--max-bytes",
        "1M",
    )
    assert (
        result.exit_code == 2
        and said in result.output
        and "wrong.toml" in result.output
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"compute": "gemm_0x1x2"}, "gemm_MxNxK"),
        ({"compute": "gemm_fp8_1x2"}, "gemm_MxNxK"),
        ({"compute": "nothing"}, "compute"),
        ({"op": "all_reduces"}, "all_reduce"),
        ({"comm_overlapped_s": 0}, "comm_overlapped_s"),
        ({"ranks": 16}, "16 ranks"),
        ({"cluster": "no-such"}, "no-such"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    """A row that cannot be read, or does not fit its cluster, ends calibrate with what is wrong, not with a file."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(line(PRODUCTS[0], 2**28) | change))
    result = run("calibrate", str(path), "-o", str(tmp_path / "mine.toml"))
    assert (
        result.exit_code == 2
        and said in result.output
        and not (tmp_path / "mine.toml").exists()
    )


def test_a_network_fit_says_that_it_left_overlap_out(tmp_path: Path) -> None:
    """--network has no use for overlap rows alone."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(line(PRODUCTS[0], 2**28)))
    result = run("calibrate", str(path), "--network", "-o", str(tmp_path / "mine.toml"))
    assert result.exit_code == 2 and "several hosts" in result.output
