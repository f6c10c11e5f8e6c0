"""What-ifs: side by side, tornado, shadow prices; nothing done twice, and every number as if it had been."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from prestep import cli
from prestep.sim import predict
from prestep.sim.analysis.shadow_prices import MORE, RESOLUTION, Prices, shadow_prices
from prestep.sim.analysis.shadow_prices import _price as price_of
from prestep.sim.commands import _shared
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import plan
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies import tornado as tornados
from prestep.sim.studies.elements import EACH, elements
from prestep.sim.studies.tornado import tornado
from prestep.sim.studies.whatif import Changes, compare
from prestep.sim.tools.catalog import find_scenario
from prestep.topologies import load_cluster
from prestep.topologies.edit.overrides import with_overrides
from tests.executed import executed, of, step_time
from tests.sample import together

STEP = """
[cluster]
name = "{cluster}"
set = {{ {changes} }}
[model]
kind = "mlp"
sizes = [4096, 8192, 8192, 4096]
[training]
micro_batch = 64
[parallel]
dp = 4
data_parallel = "ddp"
"""
SLOW_SPINE = '"spine.bandwidth" = "1 GB/s"'


@pytest.fixture
def leafspine(tmp_path: Path) -> str:
    """A step that gradients over the spine bound."""
    return scenario_file(tmp_path, "h200-leafspine-4x1", SLOW_SPINE)


def scenario_file(folder: Path, cluster: str, changes: str = "") -> str:
    path = folder / "step.toml"
    path.write_text(STEP.format(cluster=cluster, changes=changes), encoding="utf-8")
    return str(path)


def prices_of(planned: Planned) -> Prices:
    return shadow_prices(planned, of(planned).run)


def whatif(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["whatif", *arguments])


def seconds(file: str, *changes: str) -> float:
    return step_time(executed(load_scenario(file, changes)))


@pytest.mark.parametrize("kind", ["spine", "nic", "pcie"])
def test_a_price_is_what_one_percent_more_bandwidth_saves(
    leafspine: str, kind: str
) -> None:
    """The same number comes out of running the changed scenario from its file; only the spine is worth anything."""
    prices = prices_of(plan(load_scenario(leafspine)))
    faster = f"set = {{ {SLOW_SPINE}".replace("1 GB/s", "1.01 GB/s")
    if kind == "spine":
        text = (
            Path(leafspine)
            .read_text(encoding="utf-8")
            .replace(f"set = {{ {SLOW_SPINE}", faster)
        )
        Path(leafspine).with_name("more.toml").write_text(text, encoding="utf-8")
        after = seconds(str(Path(leafspine).with_name("more.toml")))
    else:
        after = seconds(leafspine, f"{kind}.bandwidth=1.01x")
    saved = (seconds(leafspine) - after) / MORE
    assert prices.by_kind.get(kind, 0.0) == pytest.approx(saved, rel=1e-6, abs=1e-9)
    assert (saved > 0.01) == (kind == "spine")


def test_the_price_is_the_derivative(leafspine: str) -> None:
    """A much smaller step and one downwards give about the same: the step is smooth in the spine's bandwidth."""
    base, changes = seconds(leafspine), Changes(load_scenario(leafspine))
    price = prices_of(changes.base).by_kind["spine"]
    for factor in (1.0001, 0.999):
        slope = (
            base
            - step_time(of(changes.with_cluster({"spine.bandwidth": f"{factor}x"})))
        ) / (factor - 1)
        assert slope == pytest.approx(price, rel=0.03)


def test_only_the_tightest_links_of_a_kind_have_its_price(tmp_path: Path) -> None:
    """With one slow port, its two directions; with equal ports, all of them together, and `tied` says so."""
    ports = '"nic.bandwidth" = "0.2x"'
    found = {}
    for name, changes in (
        ("equal", ports),
        ("one", f'{ports}, "nic[host2].bandwidth" = "0.5x"'),
    ):
        planned = plan(
            load_scenario(scenario_file(tmp_path, "h200-leafspine-4x1", changes))
        )
        prices, links = prices_of(planned), planned.fabric.links
        rows = [row for row in links.of_kind("nic").tolist() if prices.by_link[row] > 0]
        found[name] = (
            {links.name(row) for row in rows},
            {int(prices.tied[row]) for row in rows},
        )
        assert {float(prices.by_link[row]) for row in rows} == {prices.by_kind["nic"]}
    assert len(found["equal"][0]) == 8 and found["equal"][1] == {8}
    assert found["one"] == ({"host2/nic0-leaf1", "leaf1-host2/nic0"}, {2})


def test_run_prints_prices(leafspine: str) -> None:
    """In the JSON, by link and by kind, and on the page; the busiest link is the one that is worth most."""
    said = json.loads(CliRunner().invoke(cli.main, ["run", leafspine, "--json"]).stdout)
    busiest, spine = said["links"][0], said["link_kinds"][0]
    assert busiest["kind"] == spine["kind"] == "spine" and busiest["tied"] == 2
    assert busiest["shadow_price"] == spine["shadow_price"] > 0.5 * said["step_time"]
    assert (
        busiest["peak"] == pytest.approx(1.0, rel=0.01)
        and len(busiest["profile"]) == 40
    )
    assert 0 <= spine["held"] <= said["step_time"] * 1.001
    page = CliRunner().invoke(cli.main, ["run", leafspine]).stdout
    assert "1 % faster saves" in page and "all 2 of spine" in page


def test_the_trace_has_counters_of_links(leafspine: str, tmp_path: Path) -> None:
    """One series per link in a process of its own, from nothing to at most its bandwidth and back."""
    path = tmp_path / "t.json"
    assert (
        CliRunner().invoke(cli.main, ["run", leafspine, "--trace", str(path)]).exit_code
        == 0
    )
    events = [
        e
        for e in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        if e["ph"] == "C"
    ]
    assert any(e["name"].startswith("leaf0 -> leaf1 (of 1 GB/s)") for e in events)
    series = [
        e["args"]["GB/s"] for e in events if e["name"].startswith("leaf0 -> leaf1")
    ]
    assert max(series) == pytest.approx(1.0, rel=0.01) and series[-1] == 0.0
    assert {e["pid"] for e in events if "GB/s" in e["args"]} == {1_000_000}


def test_a_report_tries_what_it_can_afford(
    leafspine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated like `--each` where the step is small; of a larger one 1 % more to first order, nothing above the step."""
    scenario = load_scenario(Path(leafspine))
    result = predict.predict(scenario, prices=True)
    short = tornados.short_tornado(scenario, result)
    full = {
        row["element"]: row
        for row in tornado(scenario, ["link-kind", "gpu"])["elements"]
    }
    assert len(short["elements"]) > 2 and short["factors"] == [0.5, 2.0]
    for row in short["elements"]:
        assert [c["step_time"] for c in row["changes"]] == [
            c["step_time"] for c in full[row["element"]]["changes"]
        ]
    monkeypatch.setattr(tornados, "SPENT", 0)
    first = tornados.short_tornado(scenario, result)
    changes = {
        row["element"]: row["changes"][0]["difference"] for row in first["elements"]
    }
    assert first["factors"] == [1.01] and "first order" in first["note"]
    assert changes["spine"] == pytest.approx(-result.link_kinds[0].shadow_price / 100)
    assert all(-0.011 * result.step_time < change < 0 for change in changes.values())


def test_side_by_side_names_what_bound_the_step(leafspine: str) -> None:
    """Before, the spine; with eight times its bandwidth, the ports. Shares' differences add up to the step's."""
    compared = json.loads(
        whatif(leafspine, "--set", "spine.bandwidth=8 GB/s", "--json").stdout
    )
    assert compared["base"]["link_kinds"][0]["kind"] == "spine"
    assert compared["changed"]["link_kinds"][0]["kind"] == "nic"
    assert sum(compared["breakdown_difference"].values()) == pytest.approx(
        compared["difference"]
    )
    page = whatif(leafspine, "--set", "spine.bandwidth=8 GB/s").stdout
    before, after = page.split("links that bound the step, changed")
    assert "  spine  1 % faster saves" in before and "  nic  1 % faster saves" in after


def test_a_changed_cluster_is_not_lowered_again(leafspine: str) -> None:
    """Links, and GPUs that all change alike: one lowering for all; a GPU that differs from the others: another one."""
    changes = Changes(load_scenario(leafspine))
    for more in (
        {"spine.bandwidth": "2x"},
        {"nic.latency": "3x"},
        {"gpu.clock": "0.5x"},
    ):
        assert changes.with_cluster(more).lowered is changes.base.lowered
    apart = changes.with_cluster({"gpu[1].clock": "0.5x"})
    assert apart.lowered is not changes.base.lowered


@pytest.mark.parametrize(
    "change",
    [
        "spine.bandwidth=2x",
        "gpu.clock=0.5x",
        "gpu[3].flops=0.5x",
        "nic[host1].bandwidth=0.3x",
    ],
)
def test_what_is_kept_changes_no_number(leafspine: str, change: str) -> None:
    """A what-if's step is that of a run with the change from the start."""
    base = load_scenario(leafspine)
    changed = load_scenario(leafspine, [change])
    assert step_time(of(Changes(base).of(changed))) == step_time(executed(changed))


def test_a_change_of_the_scenario_is_compared_too(leafspine: str) -> None:
    """Not only of the cluster: half of the batch; and of the number of hosts, both at once."""
    for change in (
        ["training.micro_batch=32"],
        ["training.micro_batch=32", "spine.bandwidth=2x"],
    ):
        base, changed = load_scenario(leafspine), load_scenario(leafspine, change)
        assert step_time(of(Changes(base).of(changed))) == step_time(executed(changed))


def test_the_tornado_is_sorted_and_agrees_with_runs(leafspine: str) -> None:
    """Factors apply on top of the file's own changes: the spine, at 1 GB/s there, matters most."""
    said = json.loads(whatif(leafspine, "--each", "link-kind", "--json").stdout)
    effects = [row["effect"] for row in said["elements"]]
    assert (
        effects == sorted(effects, reverse=True)
        and said["elements"][0]["element"] == "spine"
    )
    half = seconds(leafspine, "spine.bandwidth=0.5 GB/s")
    assert said["elements"][0]["changes"][0]["step_time"] == pytest.approx(
        half, rel=1e-9
    )
    assert {row["element"] for row in said["elements"]} == set(
        load_cluster("h200-leafspine-4x1").links.kinds
    )


@together("word", list(EACH))
def test_every_word_of_each_has_elements(word: str) -> None:
    """On a cluster with hosts, leaves and spines, and each of them can be changed."""
    fabric = load_cluster("dgx-h100-superpod", hosts=2)
    found = elements(fabric, word, fabric.gpus)
    assert found and len(found) == len(set(found))
    with_overrides(fabric, {key: "0.5x" for _, key in found})


def test_the_tornado_page_has_bars_on_both_sides(
    leafspine: str, tmp_path: Path
) -> None:
    """Slower to the right, faster to the left; the picture has every element."""
    page = tmp_path / "tornado.html"
    done = whatif(
        leafspine, "--each", "link-kind", "--each", "gpu,tier", "--report", str(page)
    )
    assert done.exit_code == 0, done.output
    answer, *rows = done.stdout.splitlines()
    assert " matters most: " in answer
    assert max(map(len, rows)) <= 80
    left, right = next(row for row in rows if row.startswith("spine")).split("|")
    assert "█" in left and "█" in right and "+" in left and "-" in left
    assert "gpu hbm_bandwidth" in page.read_text(encoding="utf-8")


def test_a_set_beside_each_changes_the_base(leafspine: str) -> None:
    """The tornado starts from the changed cluster."""
    said = json.loads(
        whatif(
            leafspine, "--each", "gpu", "--set", "spine.bandwidth=2 GB/s", "--json"
        ).stdout
    )
    assert said["step_time"] == pytest.approx(
        seconds(leafspine, "spine.bandwidth=2 GB/s")
    )


@together(
    ("arguments", "told"),
    [
        ([], "--set, --against or --each"),
        (["--each", "links"], 'did you mean "link"?'),
        (["--each", "gpu", "--factors", "0.5,zero"], "numbers above 0"),
        (["--each", "gpu", "--factors", "-1"], "numbers above 0"),
        (["--each", "gpu", "--report", "a.pdf"], ".html"),
        (["--set", "gpu[9].clock=0.5x"], "a number from 0 to 3"),
        (["--set", "spin.bandwidth=2x"], 'did you mean "spine"?'),
        (["--set", "spine=off"], "ranks 2-3"),
        (["--set", "spine=2x"], "selector=off"),
    ],
)
def test_mistakes_end_with_code_2(
    leafspine: str, arguments: list[str], told: str
) -> None:
    """Nothing on stdout, what is wrong on stderr, no traceback."""
    done = whatif(leafspine, *arguments)
    assert done.exit_code == _shared.EXIT_INPUT and done.stdout == ""
    assert told in done.stderr and "Traceback" not in done.stderr


def test_tornado_of_one_gpu() -> None:
    """Nothing communicates: links change nothing, the GPU does."""
    tables = {
        "cluster": {"name": "h200-host-4", "gpus": 1},
        "model": {"kind": "mlp", "sizes": [4096, 8192, 4096]},
    }
    scenario: Scenario = parse_scenario(
        {**tables, "training": {"micro_batch": 4096}}, "one"
    )
    rows = tornado(scenario, ["link-kind", "gpu"], [0.5])["elements"]
    effects = {row["element"]: row["effect"] for row in rows}
    assert effects["gpu clock"] > 0 and effects["nvlink"] == 0.0


def test_compare_takes_shares_that_only_one_has() -> None:
    """A share that is new, or gone, counts as nothing on the other side."""
    one = {"step_time": 2.0, "breakdown": {"compute": 2.0}}
    other = {"step_time": 3.0, "breakdown": {"compute": 2.0, "exposed_dp": 1.0}}
    assert compare(one, other)["breakdown_difference"] == {
        "compute": 0.0,
        "exposed_dp": 1.0,
    }


CHOOSING = """
[cluster]
name = "roce-a100"
hosts = 2
set = { "nic.bandwidth" = "0.7992x" }
[model]
kind = "mlp"
sizes = [4096, 4096, 4096]
[training]
micro_batch = 8
precision = "bf16"
[parallel]
dp = 16
data_parallel = "ddp-no-overlap"
"""


@pytest.fixture
def choosing(tmp_path: Path) -> str:
    """A step whose gradients a faster NIC makes slower: NCCL's tuner then takes a ring that it believes to be faster."""
    path = tmp_path / "choosing.toml"
    path.write_text(CHOOSING, encoding="utf-8")
    return str(path)


def test_a_price_below_zero_has_its_cause(choosing: str) -> None:
    """Where a faster kind costs more than 0.1 % of the step, the result says what NCCL runs otherwise."""
    said = json.loads(CliRunner().invoke(cli.main, ["run", choosing, "--json"]).stdout)
    (costly,) = (kind for kind in said["link_kinds"] if kind["shadow_price"] < 0)
    assert costly["kind"] == "nic"
    assert -costly["shadow_price"] * MORE > RESOLUTION * said["step_time"]
    assert "NCCL then runs dp all_reduce of" in costly["cause"]
    page = CliRunner().invoke(cli.main, ["run", choosing]).stdout
    assert "NCCL then runs dp" in " ".join(page.split())


def test_a_what_if_names_what_nccl_chooses_otherwise(choosing: str) -> None:
    """With the algorithm held, a faster NIC is no slower; without, the answer names each communication."""
    change = ("--set", "nic.bandwidth=1.01x")
    told = json.loads(whatif(choosing, *change, "--json").stdout)
    assert told["difference"] > RESOLUTION * told["base"]["step_time"]
    assert {(c["before"], c["after"]) for c in told["choices"]} == {
        ("tree LL128", "ring LL128")
    }
    assert "by ring LL128, not tree LL128" in whatif(choosing, *change).stdout
    for algorithm in ("ring", "tree"):
        held = ("--set", f"nccl.algo={algorithm}", "--set", "nccl.proto=LL128")
        one, other = (
            seconds(choosing, *held[1::2], *more) for more in ((), change[1:])
        )
        assert other <= one * (1 + RESOLUTION)
    same = json.loads(whatif(choosing, "--set", "gpu.flops=1.01x", "--json").stdout)
    assert same["choices"] == []


@pytest.mark.parametrize(
    ("after", "price"), [(1.0005, 0.0), (1.002, -0.2), (0.99, 1.0)]
)
def test_less_than_the_resolution_costs_nothing(after: float, price: float) -> None:
    """A kind that is 1 % faster and a step that is longer by less than 0.1 %: the order of transfers, not a price."""
    assert price_of(1.0, after) == pytest.approx(price)


def test_settings_of_routes_change_the_cluster() -> None:
    """What NCCL does about rails belongs to the routes: a changed one is not answered on the routes of the scenario."""
    rail = [
        *("cluster.routing=rail", "cluster.name=rail-h100", "cluster.hosts=2"),
        *("parallel.dp=16", "training.global_batch=4096"),
    ]
    base = load_scenario(find_scenario("mlp-ddp4"), rail)
    changed = load_scenario(find_scenario("mlp-ddp4"), [*rail, "nccl.pxn_disable=true"])
    changes = Changes(base)
    assert changes.base.fabric.routing.pxn
    assert not changes.of(changed).fabric.routing.pxn
    assert changes.of(base).fabric is changes.base.fabric
