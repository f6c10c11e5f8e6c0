"""Units at the edge: texts in, SI floats inside, texts out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim.errors import InputError
from prestep.sim.units import (
    BANDWIDTHS,
    BYTES,
    DURATIONS,
    format_bandwidth,
    format_bytes,
    format_duration,
    parse_bandwidth,
    parse_bytes,
    parse_duration,
    parse_nccl_size,
)
from tests.sample import together


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("25 MiB", 25 * 2**20),
        ("4GB", 4e9),
        ("0 B", 0),
        ("1_000 kB", 1e6),
        ("1.5 KiB", 1536),
        ("2e3 B", 2000),
    ],
)
def test_bytes_are_decimal_or_binary_by_their_prefix(text: str, size: float) -> None:
    """MB is a million bytes, MiB 2**20; blanks, underscores and exponents are welcome."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "bandwidth"),
    [
        ("100 GB/s", 100e9),
        ("400 Gbit/s", 50e9),
        ("400 Gbps", 50e9),
        ("1 GiB/s", 2.0**30),
        ("8 bit/s", 1),
    ],
)
def test_bandwidth_is_bytes_per_second(text: str, bandwidth: float) -> None:
    """Bits are an eighth of a byte."""
    assert parse_bandwidth(text) == bandwidth


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("1 us", 1e-6),
        ("1 µs", 1e-6),
        ("20 ms", 0.02),
        ("3 ns", 3e-9),
        ("2 h", 7200),
        (".5 s", 0.5),
    ],
)
def test_durations_are_seconds(text: str, duration: float) -> None:
    """A duration is the float that the same number of seconds would be written as."""
    assert parse_duration(text) == duration


@pytest.mark.parametrize("parse", [parse_bytes, parse_bandwidth, parse_duration])
@together(
    "wrong",
    [
        "5",
        "",
        "fast",
        "5 parsecs",
        "-1 B",
        "-1 s",
        25,
        2.5,
        None,
        True,
        "nan B",
        "1 2 MiB",
    ],
)
def test_a_quantity_without_a_good_unit_is_an_input_error(
    parse: object, wrong: object
) -> None:
    """A bare number, an unknown unit, a negative or odd quantity: each says what was found and expected."""
    with pytest.raises(InputError, match="expected"):
        parse(wrong)  # type: ignore[operator]


def test_a_misspelt_unit_is_suggested() -> None:
    """A size where a bandwidth belongs is answered with the unit that was meant, and the place where it stands."""
    with pytest.raises(
        InputError, match=r'a\.toml: nic\.bandwidth: .*did you mean "GiB/s"'
    ):
        parse_bandwidth("5 GiB", "a.toml", "nic.bandwidth")
    with pytest.raises(InputError, match='write "400 Gbit/s"'):
        parse_bandwidth("400 Gb")
    with pytest.raises(InputError, match='write "400 Gbit/s" or "400 GB/s"'):
        parse_bandwidth(400)


@given(st.floats(1e-9, 1e15))
def test_formatting_and_parsing_agree(value: float) -> None:
    """What is printed reads back as the same value, to the digits that are printed."""
    for form, parse in (
        (format_bytes, parse_bytes),
        (format_bandwidth, parse_bandwidth),
        (format_duration, parse_duration),
    ):
        assert parse(form(value)) == pytest.approx(value, rel=1e-3)


@given(st.integers(0, 10**6))
def test_every_unit_is_linear(number: int) -> None:
    """n of a unit is n times one of it."""
    for parse, units in (
        (parse_bytes, BYTES),
        (parse_bandwidth, BANDWIDTHS),
        (parse_duration, DURATIONS),
    ):
        for unit in units:
            assert parse(f"{number} {unit}") == pytest.approx(
                number * parse(f"1 {unit}")
            )


def test_people_read_round_numbers() -> None:
    """The largest unit that leaves at least one of it, four digits."""
    assert format_bytes(25 * 2**20) == "25 MiB"
    assert format_bandwidth(450e9) == "450 GB/s"
    assert format_duration(0.0830712) == "83.07 ms"
    assert format_duration(0) == "0 s"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8", 8),
        ("4G", 4 * 2**30),
        ("128M", 2**27),
        ("4 GB", 4e9),
        ("1.5M", 3 * 2**19),
        ("32k", 2**15),
        ("1.9", 1),
    ],
)
def test_sizes_on_the_command_line_are_those_of_nccl_tests(
    text: str, size: float
) -> None:
    """A bare letter is a power of 1024, as nccl-tests reads -b and -e."""
    assert parse_nccl_size(text) == size
