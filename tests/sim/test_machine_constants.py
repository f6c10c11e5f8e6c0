"""Constants of one machine: a file in the cluster file, on the command line, or those of the GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from prestep import cli
from prestep.sim.collectives import constants, machine
from prestep.sim.errors import InputError
from prestep.topologies import load_cluster

# stas00, ml-engineering (network): all_reduce_perf of 8 A100, cut down by hand; some of its rows.
TABLE = """$ ./build/all_reduce_perf -b 32k -e 16G -f 2 -g 8 -n 50
[...]
           size    time   algbw   busbw
            (B)    (us)  (GB/s)  (GB/s)
         32_768   43.83    0.75    1.31
         65_536   46.80    1.40    2.45
        131_072   51.76    2.53    4.43
        262_144   61.38    4.27    7.47
        524_288   80.40    6.52   11.41
       1048_576   101.9   10.29   18.00
     16_777_216   276.6   60.66  106.16
     33_554_432   424.0   79.14  138.49
     67_108_864   684.6   98.02  171.54
    134_217_728  1327.6  101.10  176.92
    268_435_456  2420.6  110.90  194.07
    536_870_912  4218.4  127.27  222.72
  1_073_741_824  8203.9  130.88  229.04
  2_147_483_648   16240  132.23  231.41
  4_294_967_296   32136  133.65  233.88
  8_589_934_592   64074  134.06  234.61
 17_179_869_184  127997  134.22  234.89
"""
MEASURED = {2**26: 684.6e-6, 2**27: 1327.6e-6}


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli.main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), (
        result.exception
    )
    return result


def times(*cluster: str) -> list[float]:
    found = []
    for size in MEASURED:
        result = run(
            "collective",
            *cluster,
            "--min-bytes",
            str(size),
            "--max-bytes",
            str(size),
            "--json",
        )
        assert result.exit_code == 0, result.stderr
        rows: list[dict[str, Any]] = json.loads(result.stdout)
        found.append(rows[0]["time"])
    return found


def worst(found: list[float]) -> float:
    return max(abs(a / b - 1) for a, b in zip(found, MEASURED.values(), strict=True))


def test_what_calibrate_writes_is_used_by_option_and_by_cluster_file(
    tmp_path: Path,
) -> None:
    """A table cut down from nccl-tests fits a machine; its predictions come nearer, and both ways agree."""
    (tmp_path / "log.txt").write_text(TABLE)
    made = tmp_path / "mine.toml"
    done = run(
        "calibrate", str(tmp_path / "log.txt"), "-o", str(made), "--cluster", "dgx-a100"
    )
    assert (
        done.exit_code == 0
        and "held out" in done.stdout
        and "--nccl-constants" in done.stdout
    ), done.stderr
    (tmp_path / "cluster.toml").write_text('extends = "dgx-a100"\nnccl = "mine.toml"\n')
    by_option = times("--cluster", "dgx-a100", "--nccl-constants", str(made))
    assert by_option == times("--cluster", str(tmp_path / "cluster.toml"))
    assert worst(by_option) < 0.7 * worst(times("--cluster", "dgx-a100"))


def test_a_file_may_say_one_number(tmp_path: Path) -> None:
    """What the file leaves out is the GPU's; the cluster's other facts and links stay."""
    (tmp_path / "few.toml").write_text("[ring.LL]\nstart = 1.0\n")
    fabric = load_cluster("h200-host-4").with_columns(
        constants=str(tmp_path / "few.toml")
    )
    mine, known = machine.of(fabric), constants.load("h200")
    assert (
        mine.paces["ring", "LL"].start == 1.0
        and mine.paces["ring", "LL"].hop == known.paces["ring", "LL"].hop
    )
    assert (
        mine.paces["tree", "LL"] == known.paces["tree", "LL"]
        and mine.pairs == known.pairs
    )
    assert machine.of(load_cluster("h200-host-4")) is known
    assert fabric.facts == load_cluster("h200-host-4").facts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[rnig.LL]\nstart = 1.0\n", 'did you mean "ring"?'),
        ("[ring.LL]\nstrat = 1.0\n", 'did you mean "start"?'),
        ("[ring.LL]\nstart = 'fast'\n", "a number"),
        ("[ring.LL]\nstart = -1.0\n", "a number of at least 0"),
        ("[ring]\nstart = 1.0\n", "keys: LL, LL128, Simple"),
        ("ring = 3\n", "a table"),
        ("[ring.LL\n", "calibrate"),
    ],
)
def test_mistakes_in_the_file_are_told(tmp_path: Path, text: str, said: str) -> None:
    """Exit code 2, the file and the key; nothing on stdout."""
    path = tmp_path / "bad.toml"
    path.write_text(text)
    result = run(
        "collective", "--cluster", "h200-host-4", "--nccl-constants", str(path)
    )
    assert (
        result.exit_code == 2
        and result.stdout == ""
        and "bad.toml" in result.stderr
        and said in result.stderr
    )


def test_a_cluster_file_names_an_existing_file(tmp_path: Path) -> None:
    """A missing file, and a key that is no text, are mistakes of the cluster file."""
    for value, said in (('"none.toml"', "no such file"), ("3", "a file that")):
        (tmp_path / "c.toml").write_text(f'extends = "dgx-a100"\nnccl = {value}\n')
        with pytest.raises(InputError, match=said):
            load_cluster(tmp_path / "c.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<system version='1'>\n</system>\n", "has no times"),
        ("", "an empty file"),
        ("GPU0 X NV12\nGPU1 NV12 X\n", "needs its header"),
        (
            "size time algbw busbw\n1024 fast 1 1\n2048 1.0x 1 1\n",
            "expected microseconds",
        ),
        ("all_reduce_perf -g 8\nsize time algbw busbw\n1024 0.0 1 1\n", "more than 0"),
    ],
)
def test_files_that_are_no_logs_are_told_in_one_line(
    tmp_path: Path, text: str, said: str
) -> None:
    """`calibrate` says what the file is, not what every line of it is not."""
    (tmp_path / "x.txt").write_text(text)
    result = run(
        "calibrate",
        str(tmp_path / "x.txt"),
        "-o",
        str(tmp_path / "o.toml"),
        "--cluster",
        "dgx-a100",
    )
    assert (
        result.exit_code == 2
        and said in result.stderr
        and len(result.stderr.splitlines()) <= 3
    ), result.stderr


def test_ranks_of_a_cut_table_are_those_of_its_command(tmp_path: Path) -> None:
    """Processes of mpirun times threads times GPUs of a process; iterations (-n) are none of them."""
    from prestep.validation.formats import nccl_tests

    head = "mpirun -np 2 -x NCCL_DEBUG=INFO ./alltoall_perf -b 8 -t 2 -g 4 -n 50\n"
    path = tmp_path / "cut.log"
    path.write_text(head + "size time algbw busbw\n1,024 10.0 1 1\n2,048 11.0 1 1\n")
    rows = nccl_tests.read(path)
    assert [(row.op, row.ranks, row.size) for row in rows] == [
        ("all_to_all", 16, 1024),
        ("all_to_all", 16, 2048),
    ]
    assert rows[0].time == pytest.approx(10e-6)


@pytest.mark.parametrize("gpu", ["a100", "b200", "gb200", "h100", "h200", "v100"])
def test_the_files_of_gpus_are_right_too(gpu: str) -> None:
    """Bundled files say nothing that a user's could not, and one-way messages are no slower than two-way ones."""
    table, path = constants.load(gpu), str(constants.file_of(gpu))
    assert machine.load_file(path, gpu).paces == table.paces
    assert table.pairs.rate["send"] >= table.pairs.rate["sendrecv"]
    assert table.pairs.link["send"] >= table.pairs.link["sendrecv"] * 0.99
