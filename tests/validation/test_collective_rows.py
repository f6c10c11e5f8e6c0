"""Rows of measured collectives are read strictly, with the settings that held when they were measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prestep.sim.collectives.settings import Nccl
from prestep.sim.errors import InputError
from prestep.validation.formats import collective_rows
from prestep.validation.formats.collective_reader import read_lines
from prestep.validation.formats.nccl_env import Unpredictable, settings_of
from tests.sample import together
from tests.validation.collective_cases import line
from tests.validation.lines import written


def test_an_environment_holds_for_the_lines_after_it(tmp_path: Path) -> None:
    """Lines of a label before its env line run as NCCL chooses; those after it by the variables."""
    env = {
        "label": "odd",
        "kind": "env",
        "env": {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL128"},
    }
    rows, _ = read_lines(written(tmp_path, line(label="odd"), env, line(label="odd")))
    assert [row.series for row in rows] == ["default, 1 MiB and more", "Tree-LL128"]
    assert rows[1].name == "odd/all_reduce/n4/8388608#2"


@together(
    ("bad", "key"),
    [
        (line(op="all_redcue"), "op"),
        (line(op=None), "op"),
        (line(ranks=1), "ranks"),
        (line(ranks="4"), "ranks"),
        (line(bytes=0), "bytes"),
        (line(s=0.0), "s"),
        (line(s=None), "s"),
        (line(s=float("nan")), "s"),
        (line(graph_s=-1.0), "graph_s"),
        (line(kind="colective"), "kind"),
        ({"label": "default", "kind": "env", "env": [1]}, "env"),
        (
            {
                "label": "default",
                "kind": "overlap",
                "op": "all_reduce",
                "compute": "gemm",
            },
            "compute",
        ),
        ([1], ""),
    ],
)
def test_every_bad_line_is_named(tmp_path: Path, bad: Any, key: str) -> None:
    """A line that is wrong is a mistake with file, line, key, what was found and what was expected."""
    with pytest.raises(InputError) as error:
        read_lines(written(tmp_path, line(), bad))
    (mistake,) = error.value.mistakes
    assert (mistake.where, mistake.key) == ("rows.jsonl:2", key)
    assert mistake.found and mistake.expected


def test_all_bad_lines_are_named_together(tmp_path: Path) -> None:
    """One report names every mistake, a broken line too."""
    path = written(tmp_path, line(op="x"), line(bytes=-1))
    path.write_text(path.read_text() + "\n{")
    with pytest.raises(InputError) as error:
        read_lines(path)
    assert [mistake.where for mistake in error.value.mistakes] == [
        "rows.jsonl:1",
        "rows.jsonl:2",
        "rows.jsonl:3",
    ]


def test_a_variant_in_place_is_the_operation(tmp_path: Path) -> None:
    """`_inplace` and one-way sends are operations of NCCL under other names; the other ranks stay in the group."""
    rows, _ = read_lines(
        written(
            tmp_path,
            line(op="all_gather_inplace"),
            line(op="send_0_last"),
            line(op="send_0_1"),
        )
    )
    gpus = ["a", "b", "c", "d"]
    assert collective_rows.members(rows[0], gpus) == ("all_gather", gpus)
    assert collective_rows.members(rows[1], gpus) == ("send", ["a", "d", "b", "c"])
    assert collective_rows.members(rows[2], gpus) == ("send", gpus)


@together(
    ("env", "op", "expected"),
    [
        (
            {"NCCL_ALGO": "allreduce:Ring", "NCCL_PROTO": "LL"},
            "all_reduce",
            Nccl(algo="ring", proto="LL"),
        ),
        ({"NCCL_ALGO": "allreduce:Ring"}, "all_gather", Nccl()),
        (
            {"NCCL_ALGO": "allreduce:tree;allgather:ring"},
            "all_gather",
            Nccl(algo="ring"),
        ),
        (
            {"NCCL_MIN_NCHANNELS": "2", "NCCL_MAX_NCHANNELS": "8"},
            "send",
            Nccl(min_channels=2, max_channels=8),
        ),
        ({"NCCL_NVLS_ENABLE": "0"}, "all_reduce", Nccl(nvls=False)),
        ({"NCCL_NVLS_ENABLE": "2"}, "all_reduce", Nccl()),
        (
            {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "0"},
            "all_reduce",
            Nccl(p2p_disable=True),
        ),
        ({"NCCL_BUFFSIZE": "8388608"}, "all_reduce", Nccl(buffer_size=2.0**23)),
    ],
)
def test_variables_become_settings(
    env: dict[str, str], op: str, expected: Nccl
) -> None:
    """NCCL's variables are the keys of [nccl]; a list for one collective leaves the others alone."""
    assert settings_of(env, op, None, "f:1") == (expected, ())


def test_variables_that_are_wrong_or_unknown() -> None:
    """A value NCCL does not have is an input error, a variable without effect here is named, a choice is refused."""
    with pytest.raises(InputError, match="NCCL_MAX_NCHANNELS"):
        settings_of({"NCCL_MAX_NCHANNELS": "many"}, "all_reduce", None, "f:1")
    with pytest.raises(InputError, match="NCCL_ALGO"):
        settings_of({"NCCL_ALGO": "Rnig"}, "all_reduce", None, "f:1")
    assert settings_of(
        {"NCCL_NTHREADS": "256", "NCCL_DEBUG": "INFO"}, "all_reduce", None, "f:1"
    )[1] == ("NCCL_NTHREADS=256",)
    for env in (
        {"NCCL_ALGO": "Ring,Tree"},
        {"NCCL_PROTO": "^LL"},
        {"NCCL_HOSTID": "n0"},
    ):
        with pytest.raises(Unpredictable):
            settings_of(env, "all_reduce", None, "f:1")


def test_pretended_hosts(tmp_path: Path) -> None:
    """NCCL_HOSTID does not say how many ranks share a host; a cluster does."""
    env = {"label": "4x1", "kind": "env", "env": {"NCCL_HOSTID": "node0"}}
    path = written(tmp_path, env, line(label="4x1"))
    assert "NCCL_HOSTID" in read_lines(path)[0][0].skip
    (row,), _ = read_lines(path, "h200-leafspine-4x1")
    assert (row.skip, row.wanted) == ("", Nccl())
