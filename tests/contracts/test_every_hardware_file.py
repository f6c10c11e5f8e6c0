"""Laws of the files of GPUs and frameworks: a slip of the pen is a message with its place, and a GPU's NCCL is known."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prestep import cli
from prestep.sim import schema
from prestep.sim.collectives import constants, machine
from prestep.sim.costs import facts, generation, gpu_files, interference, spreads
from prestep.sim.errors import InputError
from prestep.sim.planning import jitter
from prestep.sim.reliability import failures
from prestep.sim.storage import systems
from prestep.workloads import host_costs
from tests.sample import together

GPU_FILES = sorted(
    path
    for path in gpu_files.HARDWARE.glob("*.toml")
    if not path.stem.endswith("-nccl")
)
FILES = [(path, facts.SCHEMA) for path in GPU_FILES]
FILES += [
    (path, host_costs.SCHEMA) for path in sorted(host_costs.FOLDER.glob("*.toml"))
]
FILES += [(module.FILE, module.SCHEMA) for module in (interference, jitter, failures)]
FILES += [(spreads.WIDTHS, spreads.SCHEMA), (systems.HOST_FILE, systems.HOST_SCHEMA)]
# A cluster's own constants of NCCL, by the GPU that they are laid over; the others are whole.
LAID_OVER = {"alcf-polaris-tcp-nccl": "a100", "alcf-sirius-tcp-nccl": "a100"}
OWN_NCCL = sorted(
    path
    for path in gpu_files.HARDWARE.glob("*-nccl.toml")
    if path != constants.EXTRA and path.stem not in LAID_OVER
)
FILES += [(path, constants.own_schema()) for path in OWN_NCCL]
FILES += [(constants.EXTRA, constants.extra_schema())]
FILES += [
    (
        gpu_files.HARDWARE / f"{name}.toml",
        constants.schema_over(constants.load(gpu).tables),
    )
    for name, gpu in LAID_OVER.items()
]
#: Tables whose keys are kinds of kernels, which anybody may add, or those of former days.
OPEN = {"factor", "renamed"}


def keys_of(
    table: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Paths of all keys of a table and of the tables in it."""
    for key, value in table.items():
        yield (*above, key)
        if isinstance(value, dict) and key not in OPEN:
            yield from keys_of(value, (*above, key))


def misspelt(table: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The table with one letter more at the end of one key."""
    name, *rest = path
    if not rest:
        return {
            key + "x" if key == name else key: value for key, value in table.items()
        }
    return {**table, name: misspelt(table[name], tuple(rest))}


@together(("path", "rules"), FILES)
def test_a_misspelt_key_is_reported_with_its_name_and_place(
    path: Path, rules: schema.Schema
) -> None:
    """Every key of every bundled file, with a letter too many, is a mistake that names file and key."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    assert not [*rules.mistakes(str(path), "", table)]
    for key in keys_of(table):
        mistakes = [*rules.mistakes(str(path), "", misspelt(table, key))]
        assert (str(path), ".".join(key) + "x") in [
            (mistake.where, mistake.key) for mistake in mistakes
        ]


def test_all_mistakes_of_a_gpus_files_are_reported_together(tmp_path: Path) -> None:
    """Unknown keys, wrong types and values out of range, of the facts and of what was fitted, in one message."""
    for path in gpu_files.HARDWARE.glob("h200*"):
        shutil.copy(path, tmp_path)
    stated, fitted = tmp_path / "h200.toml", tmp_path / "h200-fitted.toml"
    text = (
        stated.read_text()
        .replace("crowded =", "crowdde =")
        .replace("sms = 132", "sms = -1")
    )
    stated.write_text(text.replace('generation = "hopper"', 'generation = "hoper"'))
    fitted.write_text(fitted.read_text().replace("sparse = 1.765", 'sparse = "1.765"'))
    with pytest.raises(InputError) as caught:
        gpu_files.facts_of("h200", tmp_path)
    found = {
        (Path(mistake.where).name, mistake.key) for mistake in caught.value.mistakes
    }
    assert found == {
        ("h200.toml", "crowdde"),
        ("h200.toml", "sms"),
        ("h200.toml", "generation"),
        ("h200-fitted.toml", "adamw.sparse"),
    }
    assert 'did you mean "crowded"?' in str(
        caught.value
    ) and 'did you mean "hopper"?' in str(caught.value)


WRONG_NCCL = """
[ring.LL]
strat = 1e-6
hop = -1e-6
rate = { all_reduce = 0, all_gather = "fast" }
[rnig.LL]
start = 1e-6
[wire]
nvlink = 1.2
[socket.tcp]
sned = 1e-6
[overlap]
static = 0.5
"""


@pytest.mark.parametrize("way", ["option", "cluster"])
def test_all_mistakes_of_a_users_constants_of_nccl_are_reported_together(
    way: str, tmp_path: Path
) -> None:
    """Unknown tables and keys, wrong types and values out of range, by the option and by the cluster's key `nccl`."""
    mine, cluster = tmp_path / "mine.toml", tmp_path / "cluster.toml"
    mine.write_text(WRONG_NCCL)
    cluster.write_text('extends = "h200-host-4"\nnccl = "mine.toml"\n')
    words = ["--cluster", str(cluster)]
    if way == "option":
        words = ["--cluster", "h200-host-4", "--nccl-constants", str(mine)]
    result = CliRunner().invoke(cli.main, ["collective", *words])
    lines = result.stderr.splitlines()
    assert result.exit_code == 2
    assert {line.split("mine.toml: ")[1].partition(": ")[0] for line in lines} == {
        "ring.LL.strat",
        "ring.LL.hop",
        "ring.LL.rate.all_reduce",
        "ring.LL.rate.all_gather",
        "rnig",
        "wire.nvlink",
        "socket.tcp.sned",
        "overlap.static",
    }
    for word in ("start", "ring", "send"):
        assert f'did you mean "{word}"?' in result.stderr


def test_a_users_constants_of_nccl_may_be_any_part(tmp_path: Path) -> None:
    """Each number of a GPU's file is a file of its own that changes nothing: the rest stays the GPU's."""
    before = constants.load("h200")
    for name, table in before.tables.items():
        rows = {name: table} if name in constants.PLAIN else table
        for key, row in rows.items():
            title = name if name in constants.PLAIN else f"{name}.{key}"
            mine = tmp_path / f"{title}.toml"
            for number, value in row.items():
                mine.write_text(f"[{title}]\n{number} = {literal(value)}\n")
                laid = machine.load_file(str(mine), "h200")
                assert ungraded(laid.tables) == ungraded(before.tables)


def ungraded(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables without what they rest on, which is the user's where a file says anything of a row."""
    return {
        key: ungraded(value) if isinstance(value, Mapping) else value
        for key, value in tables.items()
        if key != "evidence"
    }


def literal(value: Any) -> str:
    """A number, a text, or a table of them on one line."""
    return inline(value) if isinstance(value, Mapping) else json.dumps(value)


@pytest.mark.parametrize("name", generation.names())
def test_every_generation_has_all_that_nccl_asks_for(name: str) -> None:
    """Its file, and what it is like, have each of NCCL's rows; the constants that it borrows are there."""
    one = generation.load(name)
    assert one.capability >= 70 and 0.5 < one.nvlink_share <= 1
    assert sorted(one.net_speeds, reverse=True) == list(one.net_speeds)
    assert bool(one.multicast_ctas[0] and one.multicast_share) or not one.multicast
    assert constants.load(one.constants).gpu == one.constants


def test_every_generation_is_some_gpus() -> None:
    """A file of NCCL's rows that no GPU leads to is none that a prediction could read."""
    used = {gpu_files.generation_of(gpu).name for gpu in gpu_files.names()}
    assert used == set(generation.names())


def test_a_new_generation_is_one_file(tmp_path: Path) -> None:
    """What it does not say is that of the generation it is like; what it lacks and what is wrong is told together."""
    (tmp_path / "blackwell.toml").write_text(
        (generation.FOLDER / "blackwell.toml").read_text()
    )
    (tmp_path / "rubin.toml").write_text('like = "blackwell"\nnvlink = [80.2, 100.0]\n')
    made = generation.load("rubin", tmp_path)
    assert made.nvlink_share == generation.load("blackwell").nvlink_share
    assert made.tree == generation.load("blackwell").tree and made.name == "rubin"
    assert made.at((2, 27)).tree == generation.load("blackwell").at((2, 27)).tree
    (tmp_path / "feynman.toml").write_text("amd = 1\nsockets = 3\n")
    with pytest.raises(InputError, match=r"(?s)amd.*true or false.*sockets.*socket"):
        generation.load("feynman", tmp_path)
    (tmp_path / "feynman.toml").write_text("capability = 130\n")
    with pytest.raises(InputError, match=r"(?s)constants.*workspace.*collnet"):
        generation.load("feynman", tmp_path)


def test_a_gpu_that_is_like_no_other_must_say_its_generation(tmp_path: Path) -> None:
    """Without it NCCL's tables would be anybody's guess."""
    text = (
        (gpu_files.HARDWARE / "h200.toml")
        .read_text()
        .replace('generation = "hopper"', "")
    )
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(
        InputError,
        match=r"mine\.toml: generation: found nothing, expected one of ampere",
    ):
        gpu_files.facts_of("mine", tmp_path)


@pytest.mark.parametrize("command", ["run", "collective"])
def test_a_gpu_that_no_file_describes_is_a_mistake(
    command: str, tmp_path: Path
) -> None:
    """`run` and `collective` on a cluster of such GPUs say what to do, and predict nothing."""
    cluster = tmp_path / "mine.toml"
    cluster.write_text('family = "host"\ngpu = "x900"\n')
    scenario = tmp_path / "run.toml"
    scenario.write_text(
        f'[cluster]\nfile = "{cluster}"\n[model]\nname = "llama3-8b"\n[parallel]\ndp = 8\n'
    )
    asked = ["--cluster", str(cluster)] if command == "collective" else [str(scenario)]
    result = CliRunner().invoke(cli.main, [command, *asked])
    assert (
        result.exit_code != 0
        and "x900" in result.output
        and "Traceback" not in result.output
    )


@pytest.mark.parametrize("path", sorted(systems.FOLDER.glob("*.toml")), ids=str)
def test_a_misspelt_key_of_a_storage_system_is_reported(
    path: Path, tmp_path: Path
) -> None:
    """Every key of every storage system, with a letter too many, is a mistake that names file and key."""
    mine = tmp_path / "mine.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    for key in keys_of(table):
        mine.write_text(toml_of(misspelt(table, key)), encoding="utf-8")
        with pytest.raises(InputError) as caught:
            systems.load_system(str(mine), "scenario.toml", "checkpoint.storage")
        wrong = {mistake.key.partition(".")[0] for mistake in caught.value.mistakes}
        assert wrong & {key[0], f"{key[0]}x"}


def toml_of(table: Mapping[str, Any]) -> str:
    """Texts, and tables on a line each."""
    return "\n".join(
        f"{key} = {json.dumps(value) if isinstance(value, str) else inline(value)}"
        for key, value in table.items()
    )


def inline(table: Mapping[str, Any]) -> str:
    return (
        "{ "
        + ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
        + " }"
    )
