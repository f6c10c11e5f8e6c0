"""Laws of the facts of cluster and GPU files: each one that is accepted is read, and nothing else is."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from prestep.sim.collectives.group import group_of
from prestep.sim.collectives.nccl import searched
from prestep.sim.collectives.nccl.system import of_parts, parts_of
from prestep.sim.collectives.settings import Nccl
from prestep.sim.costs import generation
from prestep.sim.costs.facts import SCHEMA, GpuFacts
from prestep.sim.costs.gpu_files import HARDWARE, facts_of, names
from prestep.topologies import load_cluster
from prestep.topologies.core.facts import KINDS, ClusterFacts
from prestep.topologies.core.quantity import Quantity
from prestep.topologies.files.clusterfile import read
from tests.sample import together

ROOT = Path(__file__).parents[2]
FACTS = {entry.name for entry in fields(ClusterFacts)}


def sources(*folders: str) -> Iterator[ast.Module]:
    """Modules that can look at facts at all: parsing the others takes most of the time."""
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "facts" in text:
                yield ast.parse(text, str(path))


def is_typed_facts(node: ast.expr, names: set[str]) -> bool:
    """`x.cluster_facts`, or a name that such a value was given."""
    return (isinstance(node, ast.Attribute) and node.attr == "cluster_facts") or (
        isinstance(node, ast.Name) and node.id in names
    )


def facts_read(tree: ast.Module) -> set[str]:
    """Attributes of typed facts that a module reads."""
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and is_typed_facts(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and is_typed_facts(node.value, names)
    }


def keys_read(tree: ast.Module) -> set[str]:
    """Keys with which a module looks into `Fabric.facts`, the untyped table of all of a file's numbers."""
    asked: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            asked += (
                [node.slice]
                if isinstance(node.value, ast.Attribute) and node.value.attr == "facts"
                else []
            )
        elif isinstance(node, ast.Compare):
            inside = [
                item
                for item in node.comparators
                if isinstance(item, ast.Attribute) and item.attr == "facts"
            ]
            asked += [node.left] if inside else []
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
        ):
            table = node.func.value
            asked += (
                node.args[:1]
                if isinstance(table, ast.Attribute) and table.attr == "facts"
                else []
            )
    return {str(key.value) for key in asked if isinstance(key, ast.Constant)}


def test_every_accepted_fact_is_read_and_no_other() -> None:
    """What a cluster file may state changes something, and what the program asks for can be stated."""
    assert set().union(*map(facts_read, sources("sim"))) == FACTS == set(KINDS)


def test_facts_of_every_family_are_read_typed_only() -> None:
    """A key of the untyped table is a parameter of a family: a misspelt one would be a fact that nobody states."""
    for tree in sources("sim", "topologies", "workloads", "validation"):
        keys = keys_read(tree)
        assert not keys & FACTS, "read Fabric.cluster_facts"
        assert keys <= {"gpus", "nvlinks"}, "a parameter of which family?"


@together("key", sorted(KINDS))
def test_a_fact_in_a_file_is_the_typed_one(key: str, tmp_path: Path) -> None:
    """Each fact of a file arrives under its name and with its type; what the file leaves out is None."""
    examples = {
        "0 or 1": "1",
        "a number": "1.5",
        "a share, at most 1": "0.5",
        "bytes": "65536",
    }
    written = examples.get(KINDS[key].written, KINDS[key].written)
    path = tmp_path / "mine.toml"
    path.write_text(
        # of no bundled host, whose facts would stand beside it
        f'family = "host"\ngpu = "v100"\n{key} = {{ value = {written}, evidence = "guess", source = "a test" }}\n'
    )
    facts = read(path).cluster_facts
    assert {name for name in FACTS if getattr(facts, name) is not None} == {key}
    assert type(getattr(facts, key)) is KINDS[key].type


def ring_speed(amd: bool) -> float:
    """GB/s per channel between hosts of Polaris, whose NICs are on the CPU's PCIe, were its CPU AMD's or Intel's."""
    polaris = load_cluster("alcf-polaris", 2)
    stated = {"amd_cpu": Quantity(float(amd), "guess", "a test")}
    fabric = polaris.with_facts(polaris.name, {**polaris.facts, **stated})
    group = group_of(fabric, fabric.gpus, Nccl())
    return searched.on_host(group, fabric, Nccl(), group.hosts[0]).ring.between


def test_ways_through_an_amd_cpu_cost_no_more_than_their_bytes() -> None:
    """NCCL takes PCIe through a CPU of Intel for a fifth slower (INTEL_P2P_OVERHEAD), and through one of AMD not."""
    assert (ring_speed(amd=True), ring_speed(amd=False)) == (24.0, 20.0)


def test_the_bundled_amd_hosts_are_searched_as_such() -> None:
    """DGX A100, AWS p5 and Polaris have EPYC CPUs."""
    for name in ("dgx-a100", "aws-p5", "alcf-polaris"):
        fabric = load_cluster(name)
        group = group_of(fabric, fabric.gpus, Nccl())
        assert of_parts(
            parts_of(fabric, group, group.hosts[0], generation.load("ampere"))
        ).amd


def gpu_facts_read(tree: ast.Module) -> set[str]:
    """Attributes that a module reads of a GPU's facts: `facts.x` or `gpu.facts.x`."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and (
            (isinstance(node.value, ast.Name) and node.value.id == "facts")
            or (
                isinstance(node.value, ast.Attribute)
                and node.value.attr in ("facts", "_facts")
            )
        )
    }


def test_every_fact_that_a_gpus_file_may_state_is_read() -> None:
    """A key of a GPU's file is a field of its facts, and somebody reads that field."""
    stated = set(SCHEMA.keys)
    found_out = {"guessed_load", "borne_out"}  # of files and measured steps: no key
    assert stated == {entry.name for entry in fields(GpuFacts)} - found_out
    # Read by the facts themselves: as `tiles`, and as `room`.
    within = {"gemm", "products", "usable"}
    trees = (*sources("sim/costs"), *sources("sim/analysis"))
    assert stated - within <= set().union(*map(gpu_facts_read, trees))


@together("name", names())
def test_a_stated_fact_is_the_typed_one(name: str) -> None:
    """Each number of a GPU's own file arrives under its name, as the file has it."""
    table = tomllib.loads((HARDWARE / f"{name}.toml").read_text(encoding="utf-8"))
    facts = facts_of(name)
    numbers = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in table.items()
        if not isinstance(value, dict)
    }
    assert {key: getattr(facts, key) for key in numbers} == numbers
    assert {**facts.efficiency} == table["efficiency"] and {**facts.peak} == table[
        "peak"
    ]


def test_facts_of_a_gpu_do_not_change() -> None:
    """They are values: a what-if makes another one."""
    with pytest.raises(FrozenInstanceError):
        facts_of("h200").sms = 1  # type: ignore[misc]
