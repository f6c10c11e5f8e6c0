"""Selectors of what-ifs: what each means on a cluster, what `off` leaves, and what is said of those that mean nothing."""

from __future__ import annotations

import numpy as np
import pytest

from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.edit.overrides import with_overrides
from prestep.topologies.edit.selectors import resolve
from tests.sample import together

# Without the storage network, which would still join the hosts.
POD = load_cluster("dgx-h100-superpod", hosts=4, overrides={"storage_nic": "off"})
LINKS = POD.links
LEAFSPINE = load_cluster("h200-leafspine-4x1")


def rows_where(wanted: object) -> list[int]:
    return np.flatnonzero(wanted).tolist()


def test_a_kind_and_a_tier() -> None:
    """A kind is its links; a tier the links into it from below, which for leaves are those of the NICs."""
    assert resolve(POD, "nic").rows.tolist() == rows_where(LINKS.kind == "nic")
    assert resolve(POD, "leaf").rows.tolist() == rows_where(LINKS.kind == "nic")
    assert resolve(POD, "spine").rows.tolist() == rows_where(LINKS.kind == "spine")
    assert resolve(POD, "nvswitch").rows.tolist() == rows_where(LINKS.kind == "nvlink")
    assert len(resolve(POD, "link").rows) == len(LINKS)


def test_a_link_between_two_leaves_is_the_spine() -> None:
    """Two leaves without a spine switch: the tier of leaves has the NICs' cables only."""
    assert set(LEAFSPINE.links.names(resolve(LEAFSPINE, "spine").rows)) == {
        "leaf0-leaf1",
        "leaf1-leaf0",
    }
    assert set(LEAFSPINE.links.kind[resolve(LEAFSPINE, "leaf").rows]) == {"nic"}


@together(
    ("selector", "nodes"),
    [
        ("gpu[17]", ["host2/gpu1"]),
        ("gpu[0-2,9]", ["host0/gpu0", "host0/gpu1", "host0/gpu2", "host1/gpu1"]),
        ("gpu[host3.7]", ["host3/gpu7"]),
        ("gpu[host3/gpu7]", ["host3/gpu7"]),
        ("nic[host0.3]", ["host0/nic3"]),
        ("nic[host0.2-3]", ["host0/nic2", "host0/nic3"]),
        ("leaf[2]", ["unit0/leaf2"]),
        ("nic[*/nic0]", [f"host{h}/nic0" for h in range(4)]),
        ("host1/gpu0", ["host1/gpu0"]),
    ],
)
def test_devices_by_number_name_and_pattern(selector: str, nodes: list[str]) -> None:
    """Numbers count from 0, in the cluster or in a host."""
    assert list(resolve(POD, selector).nodes) == nodes


def test_a_host_is_everything_in_and_at_it() -> None:
    """By its name, or as a number of hosts; its cables to the leaves too, and nobody else's."""
    inside = [name for name in POD.nodes.names if POD.host_of(name) == "host2"]
    expected = rows_where(np.isin(LINKS.src, inside) | np.isin(LINKS.dst, inside))
    assert (
        resolve(POD, "host2").rows.tolist()
        == resolve(POD, "host[2]").rows.tolist()
        == expected
    )
    assert resolve(POD, "link[host2]").rows.tolist() == expected
    nics = resolve(POD, "nic[host2]").rows
    assert set(nics.tolist()) == {row for row in expected if LINKS.kind[row] == "nic"}


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("link[unit0/leaf0->spine1]", ["unit0/leaf0-spine1"]),
        ("unit0/leaf0 > spine1", ["unit0/leaf0-spine1"]),
        ("link[unit0/leaf0-spine1]", ["unit0/leaf0-spine1", "spine1-unit0/leaf0"]),
    ],
)
def test_one_link_and_one_direction(selector: str, names: list[str]) -> None:
    """An arrow is a direction, a dash both."""
    assert sorted(LINKS.names(resolve(POD, selector).rows)) == sorted(names)


def test_a_single_element_leaves_the_others_as_they_are() -> None:
    """Half a NIC: two rows change, at half."""
    changed = with_overrides(POD, {"nic[host3.1].bandwidth": "0.5x"}).links
    differ = np.flatnonzero(changed.bandwidth != LINKS.bandwidth)
    assert set(LINKS.names(differ)) == {
        "host3/nic1-unit0/leaf1",
        "unit0/leaf1-host3/nic1",
    }
    assert (changed.bandwidth[differ] == LINKS.bandwidth[differ] / 2).all()
    assert (
        with_overrides(POD, {"leaf.bandwidth": "50%"}).links.bandwidth[differ[0]]
        == LINKS.bandwidth[differ[0]] / 2
    )


def test_off_takes_cables_in_both_directions_and_dead_ends() -> None:
    """A NIC without its cable is gone, and so is its slot; routes go by another NIC of the host."""
    less = with_overrides(POD, {"link[host0/nic3->unit0/leaf3]": "off"})
    assert "host0/nic3" not in less.nodes.index and less.gpus == POD.gpus
    assert len(less.links) == len(LINKS) - 4
    way = [less.links.name(row) for row in less.route("host0/gpu3", "host1/gpu3")]
    assert any("host0/nic" in name for name in way) and not any(
        "host0/nic3" in name for name in way
    )


def test_bytes_take_pcie_where_nvlink_is_off() -> None:
    """GPUs of a host still reach each other, over slower links."""
    less = load_cluster("h200-host-4", overrides={"nvswitch": "off"})
    assert "nvlink" not in less.links.kinds
    assert set(less.links.kind[less.route("gpu0", "gpu3")]) == {"pcie"}


@pytest.mark.parametrize(
    ("key", "ranks"),
    [
        ("nic[host1]", "ranks 8-15 (host1/gpu0, ...)"),
        ("leaf", "ranks 8-31"),
        ("gpu[3]", "rank 3 (host0/gpu3)"),
        ("host2", "ranks 16-23"),
        ("link[host0/gpu5]", "rank 5 (host0/gpu5)"),
    ],
)
def test_what_cuts_ranks_off_is_an_error_that_names_them(key: str, ranks: str) -> None:
    """Also the GPU itself, and its host."""
    with pytest.raises(InputError) as caught:
        with_overrides(POD, {key: "off"}, "a.toml")
    assert ranks in str(caught.value) and str(caught.value).startswith(
        f"a.toml: {key}: "
    )


@together(
    ("key", "value", "told"),
    [
        ("nvlik.bandwidth", "2x", 'did you mean "nvlink"?'),
        ("gpu[32].flops", "2x", "a number from 0 to 31"),
        ("nic[host9].bandwidth", "2x", 'did you mean "host'),
        ("link[spine0->spine1].bandwidth", "2x", "spine0 has links to unit0/leaf0"),
        ("unit0/leaf0->spin1.bandwidth", "2x", 'did you mean "spine1"?'),
        ("gpu.bandwidth", "2x", "one of flops, hbm_bandwidth, clock"),
        ("nvlink.flops", "2x", "only they have flops"),
        ("gpu.clock", "1980 MHz", 'a factor such as "0.9x"'),
        ("gpu.power_limit", "500", '"500 W"'),
        ("gpu.power_limit", "0 W", "a power_limit above 0"),
        ("gpu.flops", "0x", "a factor above 0"),
        ("gpu.flops", "900", '"900 TFLOP/s"'),
        ("gpu.hbm_bandwith", "2x", 'did you mean "hbm_bandwidth"?'),
        ("nic.bandwidth", "-1x", "a factor"),
        ("nic.bandwidth", "0 GB/s", 'selector = "off"'),
        ("nic.bandwidth", "1e999x", "a factor above 0"),
        ("nic", "2x", "selector.attribute"),
        ("nic[host0.3]", "2x", "selector.attribute"),
        ("nvlik", "off", 'did you mean "nvlink"?'),
        ("", "off", "matches no link"),
        ("[].bandwidth", "2x", "matches no link"),
    ],
)
def test_a_mistake_names_what_comes_close(key: str, value: str, told: str) -> None:
    """Wrong selectors, attributes and values, each in one line."""
    with pytest.raises(InputError) as caught:
        with_overrides(POD, {key: value})
    assert told in str(caught.value), str(caught.value)
