"""A GPU of a machine's own: what it measured counts, what it did not is the known GPU's; mistakes have a place."""

from __future__ import annotations

from pathlib import Path

import pytest

from prestep.sim.costs import load_gpu
from prestep.sim.costs.measured import load_file
from prestep.sim.costs.measured_rows import read_rows, write_rows
from prestep.sim.costs.tables import Row
from prestep.sim.errors import InputError
from prestep.sim.graph.kernel import Kernel, named
from prestep.topologies import load_cluster
from tests.sample import together

KERNEL = Kernel("aten mm", (4096, 4096, 4096), layout="nt")
SLOWER = 1.15 * load_gpu("h200").duration(KERNEL)
HEAD = 'format = 1\nbase = "h200"\ntable = "t.parquet"\n'


def written(folder: Path, text: str = HEAD, rows: list[Row] | None = None) -> str:
    write_rows(folder / "t.parquet", rows or [Row(KERNEL, SLOWER, 0.01, 3, "here")])
    (folder / "g.toml").write_text(text)
    return str(folder / "g.toml")


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    """The table keeps kernels, times and where they are from."""
    other = Row(
        Kernel("aten add", (7,), "fp32", "strided", 84.0), 2e-6, 0.1, 1, "micro"
    )
    rows = [Row(KERNEL, 1e-3, 0.01, 3, "here"), other]
    write_rows(tmp_path / "t.parquet", rows)
    assert read_rows(tmp_path / "t.parquet") == rows


def test_a_measured_shape_counts_and_a_far_one_does_not(tmp_path: Path) -> None:
    """A row of the machine's own decides its shape; many octaves away the known GPU's time stays."""
    mine, known = load_file(written(tmp_path)), load_gpu("h200")
    assert mine.duration(KERNEL) == pytest.approx(SLOWER, rel=0.03)
    assert mine.evidence(KERNEL) == "measured"
    far = Kernel("aten mm", (16, 128, 64), layout="nt")
    assert mine.duration(far) == pytest.approx(known.duration(far), rel=0.05)


def test_a_factor_moves_what_was_not_measured(tmp_path: Path) -> None:
    """The base's rows of a table are scaled by its factor; facts of the file are the GPU's."""
    text = (
        HEAD
        + "memory = 7e10\n[factor]\nattention_fwd-bf16 = { value = 1.5, low = 1.4, high = 1.6, rows = 9 }\n"
    )
    mine, known = load_file(written(tmp_path, text)), load_gpu("h200")
    kernel = named("attention_fwd", (1, 32, 8, 2048, 64))
    assert mine.duration(kernel) == pytest.approx(
        1.5 * known.duration(kernel), rel=0.02
    )
    assert mine.memory == 7e10


@together(
    ("text", "word"),
    [
        ('format = 2\nbase = "h200"\ntable = "t.parquet"\n', "format"),
        ('format = 1\nbase = "h299"\ntable = "t.parquet"\n', "h299"),
        ('format = 1\nbase = "h200"\ntable = "../t.parquet"\n', "beside this one"),
        ('format = 1\nbase = "h200"\ntable = "none.parquet"\n', "none.parquet"),
        ('like = "h100"\nsms = 304\n', "bandwidth"),
        ("sms = 304\n", "like"),
        ('format = 1\nbase = "g.toml"\ntable = "t.parquet"\n', "facts alone"),
        (HEAD + "smss = 3\n", 'did you mean "sms"'),
        (HEAD + "memory = -1\n", "memory"),
        (HEAD + "[factor]\nadd-bf16 = 1.2\n", "factor.add-bf16"),
        (HEAD + "gemm = 3\n", "gemm"),
        ("not toml at all", "g.toml"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_key(
    tmp_path: Path, text: str, word: str
) -> None:
    """A cluster that names such a file says what is wrong with it."""
    with pytest.raises(InputError) as error:
        load_file(written(tmp_path, text))
    assert word in str(error.value)


FACTS = """
like = "h100"
generation = "hopper"
sms = 304
memory = 206158430208
bandwidth = 5.3e12
l2 = 268435456
l2_bandwidth = 17.2e12
gap = 2e-6
floor = 2e-6
[peak]
bf16 = 1307.4e12
fp8 = 2614.9e12
[efficiency]
flops = 0.5
bytes = 0.8
"""


def test_facts_alone_are_a_starting_point(tmp_path: Path) -> None:
    """A GPU of a datasheet runs what the one it is like runs, as the limits of both differ, and says that it guesses."""
    (tmp_path / "new.toml").write_text(FACTS)
    new, like = load_file(str(tmp_path / "new.toml")), load_gpu("h100")
    copy = Kernel("aten add", (2**28,), bytes=6.0 * 2**28)
    times = [gpu.duration(KERNEL) - gpu.floor for gpu in (new, like)]
    # Tiles fill 304 SMs to another part of a last wave than 132.
    assert times[0] / times[1] == pytest.approx(like.peak["bf16"] / 1307.4e12, rel=0.1)
    assert new.duration(copy) < like.duration(copy)
    assert new.evidence(KERNEL) == "guess"
    assert (new.sms, new.memory) == (304, 206158430208)


def test_rows_correct_a_gpu_of_facts(tmp_path: Path) -> None:
    """A machine's own file stands on one of facts as on a GPU that prestep has."""
    (tmp_path / "new.toml").write_text(FACTS)
    text = 'format = 1\nbase = "new.toml"\ntable = "t.parquet"\n'
    mine = load_file(written(tmp_path, text))
    assert mine.duration(KERNEL) == pytest.approx(SLOWER, rel=0.03)
    assert mine.evidence(KERNEL) == "measured" and mine.sms == 304


def test_a_file_without_a_table_is_its_base(tmp_path: Path) -> None:
    """Facts and factors alone are no mistake."""
    mine = load_file(written(tmp_path, 'format = 1\nbase = "h200"\nspread = 0.01\n'))
    assert mine.duration(KERNEL) == load_gpu("h200").duration(KERNEL)
    assert mine.spread == 0.01


def test_a_table_of_nonsense_is_refused(tmp_path: Path) -> None:
    """Times that are none, and files that are no table."""
    path = written(tmp_path, rows=[Row(KERNEL, float("nan"), 0.01, 3, "here")])
    with pytest.raises(InputError, match="above 0"):
        load_file(path)
    (tmp_path / "t.parquet").write_text("nonsense")
    with pytest.raises(InputError, match="a table of kernels"):
        load_file(path)


def test_a_cluster_names_the_file_beside_it(tmp_path: Path) -> None:
    """`kernels` is relative to the cluster file; one that is not there is a mistake."""
    written(tmp_path)
    cluster = tmp_path / "c.toml"
    cluster.write_text('extends = "h200-host-4"\nkernels = "g.toml"\n')
    assert load_cluster(str(cluster)).kernels == str(tmp_path / "g.toml")
    cluster.write_text('extends = "h200-host-4"\nkernels = "h.toml"\n')
    with pytest.raises(InputError, match="no such file"):
        load_cluster(str(cluster))
