"""Rank -> GPU: order, leaf, rail, scattered, lists and hostfiles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.edit.hostfile import expand, read
from prestep.topologies.edit.placement import leaves_of, place
from tests.sample import together

RAIL = load_cluster("rail-h100", hosts=4)
POD = load_cluster("dgx-h100-superpod", hosts=96)


@dataclass(frozen=True)
class Asked:
    by: str = "order"
    gpus: tuple[str, ...] | None = None
    hosts: tuple[str, ...] | None = None
    hostfile: str | None = None
    slots: int | None = None
    leaves: int | None = None


def hosts(gpus: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(gpu.split("/")[0] for gpu in gpus))


@given(
    st.sampled_from(["order", "leaf", "rail", "scattered"]),
    st.integers(1, 32),
    st.sampled_from([None, 2, 4, 8]),
    st.permutations(["host0", "host1", "host2", "host3"]),
)
def test_every_rank_has_a_gpu_of_its_own(
    by: str, ranks: int, slots: int | None, order: list[str]
) -> None:
    """Whatever is asked for: as many different GPUs as ranks, or an error that says how many there are."""
    asked = Asked(by, hosts=tuple(order), slots=slots)
    if ranks > 4 * (slots or 8):
        with pytest.raises(InputError, match=f"at most {4 * (slots or 8)} ranks"):
            place(RAIL, ranks, asked)
        return
    gpus = place(RAIL, ranks, asked)
    assert len(set(gpus)) == len(gpus) == ranks and set(gpus) <= set(RAIL.gpus)


def test_order_fills_one_host_after_the_other() -> None:
    """As torchrun numbers ranks; hosts in the order given."""
    assert place(RAIL, 3, Asked()) == RAIL.gpus[:3]
    placed = place(RAIL, 16, Asked(hosts=("host2", "host0")))
    assert (
        placed[0] == "host2/gpu0"
        and placed[7] == "host2/gpu7"
        and placed[8] == "host0/gpu0"
    )


def test_by_rail_the_neighbours_are_on_one_rail() -> None:
    """GPU 0 of every host first, then GPU 1."""
    placed = place(RAIL, 32, Asked("rail"))
    assert placed[:5] == (
        "host0/gpu0",
        "host1/gpu0",
        "host2/gpu0",
        "host3/gpu0",
        "host0/gpu1",
    )


def test_scattered_neighbours_share_no_leaf_and_by_leaf_they_do() -> None:
    """Hosts are dealt out over the leaves in turn, as an allocation under several of them is; by leaf mends it."""
    under = leaves_of(POD)
    scattered = place(POD, 24 * 8, Asked("scattered", leaves=3))
    dealt = [under[host] for host in hosts(scattered)]
    assert all(a != b for a, b in pairwise(dealt)) and len(set(dealt)) == 3
    mended = place(POD, 24 * 8, Asked("leaf", hosts=tuple(hosts(scattered))))
    again = [under[host] for host in hosts(mended)]
    assert set(mended) == set(scattered) and again == sorted(again, key=again.index)


def test_other_jobs_keep_their_gpus() -> None:
    """Without a list a job takes what is left; a list that names a taken GPU is an error."""
    taken = RAIL.gpus[:12]
    assert place(RAIL, 8, Asked(), taken=taken) == RAIL.gpus[12:20]
    with pytest.raises(InputError, match="host1/gpu0, of another job"):
        place(RAIL, 8, Asked(hosts=("host1",)), taken=taken)


@pytest.mark.parametrize(
    ("text", "placed"),
    [
        ("host2 slots=2\nhost0 slots=1\n", ["host2/gpu0", "host2/gpu1", "host0/gpu0"]),
        (
            "# a comment\n\nhost1:2 # MPICH\nhost3\n",
            ["host1/gpu0", "host1/gpu1", "host3/gpu0"],
        ),
        (
            "host[2-3] slots=1\nhost0 slots=1 max_slots=8\n",
            ["host2/gpu0", "host3/gpu0", "host0/gpu0"],
        ),
        ("host0\nhost1\nhost0\n", ["host0/gpu0", "host1/gpu0", "host0/gpu1"]),
        (
            "host0 slots=1\nhost1 slots=1\nhost0 slots=1\n",
            ["host0/gpu0", "host0/gpu1", "host1/gpu0"],
        ),
        ("host1,host2\n", ["host1/gpu0", "host1/gpu1", "host1/gpu2"]),
    ],
)
def test_hostfiles_of_mpirun_and_slurm(
    text: str, placed: list[str], tmp_path: Path
) -> None:
    """Slots, ranges, bare names, repeated names, comments."""
    file = tmp_path / "hosts"
    file.write_text(text, encoding="utf-8")
    assert list(place(RAIL, 3, Asked(hostfile=str(file)))) == placed


@together(
    ("text", "told"),
    [
        ("host0\nhots1 slots=2\n", 'hosts:2: found host "hots1"'),
        ("host0 slots=9\n", "hosts:1: found 9 slots on host0, expected at most 8"),
        ("host0 slots=many\n", "hosts:1: slots"),
        ("host0 cpus=3\n", "hosts:1"),
        ("host0:0\n", "hosts:1: slots"),
        ("host[3-1]\n", "hosts:1"),
        ("host[0-\n", "hosts:1"),
        ("# nothing\n", "no host"),
        ("host0\n" * 9, "rank 8"),
    ],
)
def test_a_wrong_hostfile_names_its_line(text: str, told: str, tmp_path: Path) -> None:
    """File and line, or the rank that has no place."""
    file = tmp_path / "hosts"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        place(RAIL, 9, Asked(hostfile=str(file)))
    assert told in str(error.value)


def test_all_wrong_lines_are_told_at_once(tmp_path: Path) -> None:
    """Not only the first."""
    file = tmp_path / "hosts"
    file.write_text("hots1\nhost0 slots=99\nnode[7-8]\n", encoding="utf-8")
    with pytest.raises(InputError) as error:
        place(RAIL, 4, Asked(hostfile=str(file)))
    assert len(error.value.mistakes) == 4
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none")


@together(
    ("asked", "told"),
    [
        (Asked(gpus=("host0/gpu0", "host0/gpu9")), "gpus, rank 1"),
        (
            Asked(gpus=("host0/gpu0", "host0/gpu0")),
            "rank 1: found host0/gpu0, where rank 0 is",
        ),
        (Asked(gpus=("host0/gpu0",)), "1 GPUs, expected 2"),
        (Asked(hosts=("host9",)), 'host "host9"'),
        (Asked(hosts=("host0", "host0")), "host0 twice"),
        (Asked(hosts=("host0",), slots=1), "rank 1 has none"),
        (Asked(slots=9), "9 on host0"),
        (Asked(leaves=2), "scattered"),
        (Asked("scattered", leaves=9), "at most 1"),
        (Asked(hosts=("host0",), gpus=("host0/gpu0",)), "gpus and hosts"),
        (Asked("rail", gpus=("host0/gpu0",)), "gpus alone"),
    ],
)
def test_what_does_not_fit_is_named(asked: Asked, told: str) -> None:
    """Rank, host or GPU, and what was expected."""
    with pytest.raises(InputError) as error:
        place(RAIL, 2, asked)
    assert told in str(error.value)


def test_ranges_keep_their_zeros() -> None:
    """Slurm's node[01-03] is not node1."""
    assert expand("n[01-03,7]x[1-2],login", "") == [
        "n01x1",
        "n01x2",
        "n02x1",
        "n02x2",
        "n03x1",
        "n03x2",
        "n7x1",
        "n7x2",
        "login",
    ]


def test_numbers_without_end_are_no_range() -> None:
    with pytest.raises(InputError, match="a rising range"):
        expand(f"n[1-{'9' * 5001}]", "")
