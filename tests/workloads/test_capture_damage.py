"""Recordings of `prestep capture` that cannot be, end early or are spoilt: the message names the place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from prestep.sim.errors import InputError
from prestep.workloads.capture import recording
from tests.workloads.test_capture_recording import COMPUTE, all_reduce, tables


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (["operate", 0, 7, 0, 0], "operation: number of one of the operations"),
        (["operate", "0", 0, 0, 0], "[1]: found '0', expected `int`"),
        (
            ["operate", 0, 0, 0],
            "[20]: found ['operate', 0, 0, 0], expected `array` of at least length 5",
        ),
        (["free", [1], 0], "[1]: found [1], expected `int`"),
        (["host_computes", "add", -1.0, 0], "[2]: found -1.0, expected `float` >= 0"),
        ([*all_reduce(1)[:4], "0:9", *all_reduce(1)[5:]], "group: one of 0:0"),
    ],
)
def test_an_event_that_cannot_be_names_its_place(
    event: list[object], told: str, tmp_path: Path
) -> None:
    """Rank and number of the event, and which of its values is none."""
    path = tmp_path / "job.capture"
    recording.write(path, tables([*COMPUTE, event], 2))
    with pytest.raises(InputError, match="capture the program again") as caught:
        recording.read(path)
    text = str(caught.value)
    assert f"{path}: ranks[0].events[20]" in text and told in text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"world": 0}, "world: found 0"),
        ({"world": 4, "groups": {"0:0": [0, 3]}}, "group: one of the ranks [0, 1]"),
        ({"groups": {"0:0": [0, 0]}}, "groups.0:0: found [0, 0]"),
        ({"operations": [["aten.mm.default", [], {}]]}, "operations[0]"),
        ({"parameters": -1}, "parameters: found -1"),
    ],
)
def test_a_part_that_cannot_be_is_named(
    change: dict[str, object], told: str, tmp_path: Path
) -> None:
    """Key, what was found and what was expected."""
    path = tmp_path / "job.capture"
    recording.write(path, tables([*COMPUTE, all_reduce(1)], 2) | change)
    with pytest.raises(InputError) as caught:
        recording.read(path)
    assert told in str(caught.value)


def test_a_recording_that_ends_early_or_is_spoilt_is_refused(tmp_path: Path) -> None:
    """Every cut, and a flipped byte within the compressed data."""
    path = tmp_path / "job.capture"
    recording.write(path, tables(COMPUTE, 2))
    whole = path.read_bytes()
    spoilt = [whole[:at] for at in range(0, len(whole), 40)]
    spoilt += [whole[:20] + bytes([whole[20] ^ 255]) + whole[21:]]
    spoilt += [gzip.compress(b"[" * 100_000)]
    for data in spoilt:
        path.write_bytes(data)
        with pytest.raises(InputError, match=str(path)):
            recording.read(path)
