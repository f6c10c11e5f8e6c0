"""Lines of NCCL and of programs that look at a host, and what they show on a cluster of 400 Gbit/s ports."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from prestep.sim.collectives.settings import Nccl
from prestep.topologies import load_cluster
from prestep.topologies.edit.overrides import with_overrides
from prestep.validation.doctor import choices, evidence
from prestep.validation.doctor.causes import CAUSES
from prestep.validation.doctor.diagnosis import Sign, diagnosed
from prestep.validation.doctor.sweep import Change, Situation, series_of
from prestep.validation.formats.collective_rows import Row

SIZES = (2**20, 2**24, 2**28)


def rows(hosts: int = 2) -> list[Row]:
    made = [Row("nccl-tests", "all_reduce", 8 * hosts, s, 1.0, 1.0) for s in SIZES]
    return [replace(row, hosts=hosts, per_host=8) for row in made]


@cache
def situation() -> Situation:
    return Situation(load_cluster("rail-h100", 2), Nccl(), series_of(rows()))


LINES = [
    ("Rate: 200", "nic-slow"),
    ("Rate: 400", None),
    ("Speed: 100000Mb/s", "nic-slow"),
    ("Speed: 400000Mb/s", None),
    (
        "NET/IB: [0] mlx5_0:rocep1:1/RoCE provider=Mlx5 speed=200000 context=0x1 pciPath=/sys ar=0",
        "nic-slow",
    ),
    (
        "NET/IB : mlx5_2:1 speed change detected: 400000 -> 100000 Mbps",
        "nic-slow",
    ),
    ("State: Down", "nic-missing"),
    ("State: Active", None),
    ("active_mtu: 1024 (3)", "small-frames"),
    ("active_mtu: 4096 (5)", None),
    ("NET/Socket : Using [0]eth0:10.0.0.1<0>", "tcp-fallback"),
    ("Failed to open libibverbs.so[.1]", "tcp-fallback"),
    ("Link detected: no", "nic-missing"),
    ("LnkSta: Speed 16GT/s (downgraded), Width x16", "pcie-narrow"),
    ("LnkSta: Speed 32GT/s, Width x16", None),
    ("ACSCtl: SrcValid+ TransBlk- ReqRedir+", "no-gpudirect"),
    ("ACSCtl: SrcValid- TransBlk- ReqRedir-", None),
    ("HW Thermal Slowdown : Active", "throttled"),
    ("HW Thermal Slowdown : Not Active", None),
    ("SW Power Cap : Active", None),
    ("out_of_sequence: 49823", "lossy-network"),
    ("out_of_sequence: 0", None),
    ("P2P is disabled between NVLINK connected GPUs 1 and 0.", "p2p-off"),
    ("Selected provider is tcp, fabric is eth (found 8 nics)", "tcp-fallback"),
    ("Selected provider is efa, fabric is efa (found 4 nics)", "nic-missing"),
    ("Failed to bind NVLink SHARP (NVLS) Multicast memory", "sharp-off"),
    ("GPU0 X NV18 NV18 NV18 NV18 NV18 NV18 NV18 SYS NODE NODE SYS", "wrong-numa"),
    ("GPU0 X NV18 NV18 NV18 NV18 NV18 NV18 NV18 PIX NODE SYS SYS", None),
    (
        "Pattern 4, crossNic 0, nChannels 4, bw 24.0/24.0, type NVL/SYS, sameChannels 1",
        "wrong-numa",
    ),
    (
        "Pattern 4, crossNic 0, nChannels 8, bw 48.0/48.0, type NVL/PIX, sameChannels 1",
        None,
    ),
]


@pytest.mark.parametrize(("line", "cause"), LINES)
def test_a_line_shows_the_cause_that_it_speaks_of(line: str, cause: str | None) -> None:
    """And no other; what is as the cluster file says shows nothing."""
    found = diagnosed(situation(), [Sign("log:1", line)]).signs
    assert [*found] == ([cause] if cause else [])


@pytest.mark.parametrize("line", [line for line, cause in LINES if "NET/" not in line])
def test_files_of_such_lines_are_evidence(line: str, tmp_path: Path) -> None:
    """Alone in a file, or behind NCCL's prefix."""
    path = tmp_path / "host.txt"
    prefix = "" if line[0] in "RLAHoGa" else "node0:7:9 [0] NCCL WARN "
    path.write_text(f"{prefix}{line}\n")
    (sign,) = evidence.read([path]).run.lines
    assert sign.text == line.strip()


def test_columns_that_say_what_ran_are_lines_of_it(tmp_path: Path) -> None:
    """rccl-tests prints algorithm, protocol and channels at the end of a row."""
    path = tmp_path / "all_reduce_perf.log"
    row = "33554432 8388608 float sum -1 500.0 67.1 127.38 0 500.0 67.1 127.38 0 TREE LL128 64"
    path.write_text(f"# nThread 1 nGpus 8\n{row}\n")
    (sign,) = evidence.read([path], op="all_reduce").run.lines
    assert choices.choice_of(sign.text) == (("", 33554432), ("tree", "LL128", 64))


def test_a_choice_that_the_log_names_is_predicted_as_it_says() -> None:
    """A tuner that takes rings of LL at 256 MiB alone: the times of that, and the cause before all others."""
    here = situation()
    ran = {"algo": "ring", "proto": "LL"}

    def at_one_size(row: Row) -> dict[str, Any]:
        return ran if row.size == SIZES[2] else {}

    times = here.times(Change("", by_row=at_one_size))
    plain = [size.expected.time for size in here.sizes]
    assert [a == b for a, b in zip(times, plain, strict=True)] == [True, True, False]
    slow = [replace(row, time=time) for row, time in zip(rows(), times, strict=True)]
    line = (
        f"AllReduce: {SIZES[2]} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..15}}"
    )
    log = replace(here, series=series_of(slow))
    found = diagnosed(log, [Sign("log:1", line)])
    assert found.abnormal
    first = found.suspects[0][0]
    assert first.name == "wrong-choice" and first.signs and "log" in first.change.text
    assert first.distance == pytest.approx(0.0, abs=0.2)


def test_a_choice_that_is_ncclls_own_shows_nothing() -> None:
    size = situation().sizes[1]
    run = f"Algo {size.expected.algo.upper()} proto {size.expected.proto.upper()}"
    line = f"AllReduce: {size.size} Bytes -> {run}"
    assert not choices.differs(situation(), line)


def test_what_would_be_faster_is_named_only_where_it_would_be() -> None:
    """By its predicted time: named beside a measured one that is slower, and not beside one that is as fast."""
    fabric = load_cluster(Path("lab/cases/doctor/machines/gb200-tray.toml"), 3)
    wanted = Nccl(version="2.27.3", nvls=False)
    row = Row("nccl-tests", "all_reduce", 12, 2**34, 1.0, 1.0, hosts=3, per_host=4)
    ran = Situation(fabric, wanted, series_of([row])).sizes[0].expected
    for factor, named in ((1.0, True), (0.5, False)):
        measured = replace(row, time=ran.time * factor)
        here = Situation(fabric, wanted, series_of([measured]))
        assert bool(choices.faster(here)) == named


@pytest.mark.parametrize(
    ("cluster", "down", "cause"),
    [("spectrum-x-b300", "plane0", "nic_slow"), ("rail-h100", "nic[0,8]", "slow_rail")],
)
def test_a_plane_and_a_rail_that_are_down_are_predicted_as_such(
    cluster: str, down: str, cause: str
) -> None:
    """One of the cause's forms takes exactly as long as the cluster without it, at every size; less than all takes."""
    fabric = load_cluster(cluster, 2)
    series = series_of(rows())
    cut = Situation(with_overrides(fabric, {down: "off"}), Nccl(), series)
    slow = [size.expected.time for size in cut.sizes]
    here = Situation(fabric, Nccl(), series)
    assert slow != pytest.approx([size.expected.time for size in here.sizes])
    forms = [change for change in CAUSES[cause].changes(here) if "down" in change.text]
    assert [here.times(form) for form in forms] == [pytest.approx(slow)]
