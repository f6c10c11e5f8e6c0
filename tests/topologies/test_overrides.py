"""What-ifs change what they name, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.topologies import load_cluster
from prestep.topologies.edit.overrides import select, with_overrides

DGX = load_cluster("dgx-h100")
LINKS = DGX.links
SELECTORS = st.sampled_from(
    [
        *LINKS.kinds,
        "gpu0-nvswitch1",
        "nvswitch1>gpu0",
        "nvswitch2",
        "nvlink[gpu3]",
        "pcie[host0]",
        "network",
    ]
)


@given(
    SELECTORS,
    st.sampled_from(["bandwidth", "latency"]),
    st.integers(1, 1000).map(lambda n: n / 100),
)
def test_a_factor_scales_the_selected_links_only(
    selector: str, attribute: str, factor: float
) -> None:
    """And its inverse restores them; the wire scales with the payload; the fabric itself is untouched."""
    before = getattr(LINKS, attribute).copy()
    changed = with_overrides(DGX, {f"{selector}.{attribute}": f"{factor}x"}).links
    rows = select(DGX, selector)
    expected = before.copy()
    expected[rows] *= factor
    assert np.allclose(getattr(changed, attribute), expected, rtol=1e-12)
    assert (getattr(LINKS, attribute) == before).all()
    other = {"bandwidth": "latency", "latency": "bandwidth"}[attribute]
    assert (getattr(changed, other) == getattr(LINKS, other)).all()
    if attribute == "bandwidth":
        assert np.allclose(changed.raw / changed.bandwidth, LINKS.raw / LINKS.bandwidth)
        assert set(changed.evidence[rows]) == {"guess"}
        assert all("cluster.set" in text for text in changed.source[rows])
    kept = np.setdiff1d(np.arange(len(LINKS)), rows)
    assert (changed.evidence[kept] == LINKS.evidence[kept]).all()
    assert (changed.source[kept] == LINKS.source[kept]).all()


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("gpu0-nvswitch1", {"gpu0-nvswitch1", "nvswitch1-gpu0"}),
        ("nvswitch1-gpu0", {"gpu0-nvswitch1", "nvswitch1-gpu0"}),
        ("gpu0>nvswitch1", {"gpu0-nvswitch1"}),
        ("socket", {"cpu0-cpu1", "cpu1-cpu0"}),
        ("nic[nic3]", {"nic3-network", "network-nic3"}),
        ("memory1", {"memory1-cpu1", "cpu1-memory1"}),
    ],
)
def test_selectors_name_links(selector: str, names: set[str]) -> None:
    """A kind, a kind within something, a link, one direction of it, a node."""
    assert set(LINKS.names(select(DGX, selector))) == names


def test_an_absolute_bandwidth_is_that_of_one_physical_link() -> None:
    """Rows of five links get five times it, so a GPU's switches stay in proportion."""
    links = with_overrides(
        DGX, {"nvlink.bandwidth": "10 GB/s", "nvlink.latency": "1 us"}
    ).links
    rows = links.of_kind("nvlink")
    assert np.allclose(links.bandwidth[rows], 10e9 * links.count[rows])
    assert np.allclose(links.latency[rows], 1e-6)


def test_overrides_apply_in_order() -> None:
    """First the quantity, then the factor on it."""
    links = with_overrides(
        DGX, {"socket.bandwidth": "100 GB/s", "cpu0-cpu1.bandwidth": "0.5x"}
    ).links
    assert links.bandwidth[links.of_kind("socket")].tolist() == [50e9, 50e9]


def test_mistakes_are_reported_together_with_suggestions() -> None:
    """Selector, attribute, unit and zero; each with its key."""
    wrong = {
        "nvlnk.bandwidth": "2x",
        "nvlink.bandwith": "2x",
        "pcie.bandwidth": "50",
        "nic.latency": "1 GB/s",
        "nic[host9].latency": "1 us",
        "gpu0-nvswitch9.latency": "2x",
        "socket.bandwidth": "0x",
        "nvlink": "2x",
    }
    with pytest.raises(InputError) as caught:
        with_overrides(DGX, wrong, "scenario.toml")
    text = str(caught.value)
    assert [mistake.key for mistake in caught.value.mistakes] == list(wrong)
    assert {mistake.where for mistake in caught.value.mistakes} == {"scenario.toml"}
    for hint in ("nvlink", "bandwidth", "host0", "gpu0-nvswitch3", "nvlink.bandwidth"):
        assert f'did you mean "{hint}"?' in text
    assert 'a factor such as "2x" or a bandwidth such as "100 GB/s"' in text


def test_one_override_with_two_mistakes_reports_both() -> None:
    """A selector that matches nothing and a value without a unit."""
    with pytest.raises(InputError) as caught:
        with_overrides(DGX, {"nvlnk.bandwidth": "25"})
    assert len(caught.value.mistakes) == 2
