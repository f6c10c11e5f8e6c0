"""Laws that every scenario keeps: what of them is broken, in words.

    python -m tests.fuzz.laws 500 [--first 0] [--only faster] [--of features]

draws scenarios of all keys (`tests.fuzz.drawn`), or of features that need several (`tests.fuzz.featured`), and prints
each law that one breaks.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np

from prestep.sim.analysis.beside import grown, kernels_instead, waiting_instead
from prestep.sim.analysis.choices import alone, changed_choices
from prestep.sim.analysis.json_text import finite
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.costs.power import Meter, Power
from prestep.sim.engine import engine
from prestep.sim.errors import PrestepError
from prestep.sim.graph.opgraph import COMM, KERNEL
from prestep.sim.predict import execute, plan, reported
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.whatif import compared
from tests.executed import Executed, executed, step_time
from tests.fuzz.drawn import drawn
from tests.fuzz.featured import featured
from tests.fuzz.running import impossible

#: More of something may cost so much, as a share of the step.
SLOWER = 1e-3
ALIKE = 1e-9
NEARLY = 1e-6  # what a change of 1e-7 may move
UNLIKE = 1e-4  # and where ranks do not do the same
#: Kinds of links whose bandwidths are changed.
LINKS = ("nvlink", "nic", "spine")
#: What a change of nothing is tried on.
CHANGEABLE = (
    *(f"{kind}.{what}" for kind in LINKS for what in ("bandwidth", "latency")),
    *("gpu.flops", "gpu.hbm_bandwidth", "gpu.clock", "gpu.power_limit"),
    *("gpu[0].flops", "gpu[0].clock", "pcie.bandwidth"),
)
DRAWS = {"keys": drawn, "features": featured}
Tables = dict[str, Any]


def changed(tables: Tables, **sections: dict[str, Any]) -> Scenario:
    """The scenario of tables with other keys."""
    again = copy.deepcopy(tables)
    for name, keys in sections.items():
        again[name] = {**again.get(name, {}), **keys}
    return parse_scenario(again, "drawn")


def _set(tables: Tables, change: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The cluster's changes with another one on top."""
    return {"cluster": {"set": {**tables["cluster"].get("set", {}), **change}}}


def _untouched(tables: Tables, change: dict[str, str]) -> bool:
    """Whether the scenario changes none of these itself: its own change would be taken back."""
    return not change.keys() & tables["cluster"].get("set", {}).keys()


def sound(tables: Tables, done: Executed) -> Iterator[str]:
    """Figures are finite and not negative, shares sum to the step, and no bound lies above it."""
    result = reported(done.planned, done.run)
    yield impossible(json.dumps(finite(result.to_dict())))
    if not math.isclose(sum(result.breakdown.values()), result.step_time, rel_tol=1e-6):
        yield f"shares of {sum(result.breakdown.values())} in {result.step_time}"
    yield from _timed(result)
    if not (result.mfu is None or 0 <= result.mfu <= 1):
        yield f"mfu of {result.mfu}"
    for link in result.links:
        if not 0 <= link.utilisation <= 1 + 1e-6:
            yield f"link used {link.utilisation}"
    if not sum(m.total for m in result.peak_memory.values()) > 0:
        yield "no memory"
    sure, energy = result.uncertainty, result.energy
    if sure is not None and not sure.low <= result.step_time <= sure.high:
        yield f"interval {sure.low} to {sure.high} of {result.step_time}"
    if energy is not None and not 0 < energy.gpu_step_energy <= energy.step_energy:
        yield f"energy {energy.gpu_step_energy} of {energy.step_energy}"


def _timed(result: Prediction) -> Iterator[str]:
    """The critical path is as long as the step, and no rank's step is longer."""
    step, path = result.step_time, result.critical_path
    if path is None or not math.isclose(path.length, step, rel_tol=ALIKE):
        yield f"a path of {path and path.length} s through a step of {step} s"
    if max(result.step_time_by_rank.values()) > step * (1 + ALIKE):
        yield f"a rank takes {max(result.step_time_by_rank.values())} s of {step} s"


def repeated(tables: Tables, done: Executed) -> Iterator[str]:
    """The same scenario, the same bytes."""
    again = executed(changed(tables))
    first, second = (
        json.dumps(reported(one.planned, one.run).to_dict()) for one in (done, again)
    )
    if first != second:
        yield "another result the second time"


def faster(tables: Tables, done: Executed) -> Iterator[str]:
    """Twice the bandwidth, arithmetic, memory or host is no slower."""
    for change in (
        {"nvlink.bandwidth": "2x"},
        {"nic.bandwidth": "2x"},
        {"spine.bandwidth": "2x"},
        {"gpu.flops": "1.5x"},
        {"gpu.hbm_bandwidth": "1.5x"},
        {"gpu.clock": "1.2x"},
        {"nvlink.latency": "0.5x"},
        {"nic.latency": "0.5x"},
    ):
        if _untouched(tables, change):
            yield from _no_slower(tables, done, str(change), **_set(tables, change))
    yield from _no_slower(tables, done, "host", cluster={"host_factor": 0.5})


def slower(tables: Tables, done: Executed) -> Iterator[str]:
    """Half the bandwidth, arithmetic or memory, and a host that is twice as slow, are no faster."""
    for change in (
        {"nvlink.bandwidth": "0.5x"},
        {"nic.bandwidth": "0.5x"},
        {"gpu.flops": "0.5x"},
        {"gpu.hbm_bandwidth": "0.5x"},
        {"gpu.clock": "0.8x"},
        {"nvlink.latency": "2x"},
    ):
        if _untouched(tables, change):
            yield from _no_slower(tables, done, str(change), -1, **_set(tables, change))
    yield from _no_slower(tables, done, "host", -1, cluster={"host_factor": 4.0})


def fuller(tables: Tables, done: Executed) -> Iterator[str]:
    """Twice the samples at once take no less memory."""
    training = tables["training"]
    if "global_batch" in training:
        return
    twice = {"micro_batch": 2 * training.get("micro_batch", 1)}
    try:
        other = executed(changed(tables, training=twice))
    except PrestepError:
        return
    before, after = (_memory(one) for one in (done, other))
    if after < before * (1 - ALIKE):
        yield f"{before:.6g} bytes become {after:.6g} with {twice}"


def _memory(done: Executed) -> float:
    """Bytes of the fullest rank in steady state: in short runs DDP still has its first buckets, in longer ones not."""
    return max(sum(one.at_peak.values()) for one in done.lowered.memory.values())


def agreed(tables: Tables, done: Executed) -> Iterator[str]:
    """A what-if's base is the step, and a change that says what is there moves no figure."""
    scenario = changed(tables)
    table = compared(scenario, scenario, prices=False)
    if table["base"]["step_time"] != step_time(done):
        yield f"{step_time(done)}, and {table['base']['step_time']} as a what-if's base"
    if not table["unchanged"]:
        yield "a change that changes nothing moves a figure"


def unmoved(tables: Tables, done: Executed) -> Iterator[str]:
    """A factor of 1 on anything, is no change at all."""
    before = step_time(done)
    for quantity in CHANGEABLE:
        if not _untouched(tables, {quantity: "1x"}):
            continue
        try:
            other = executed(changed(tables, **_set(tables, {quantity: "1x"})))
        except PrestepError:
            continue  # this cluster has none
        if step_time(other) != before:
            yield f"{before} s becomes {step_time(other)} s with 1x {quantity}"


def more(tables: Tables, done: Executed) -> Iterator[str]:
    """Twice the work is no faster."""
    training = tables["training"]
    for key in ("microbatches", "grad_accumulation", "seq_len"):
        if key in training:
            yield from _no_slower(
                tables, done, f"twice {key}", -1, training={key: 2 * training[key]}
            )


def unfolded(tables: Tables, done: Executed) -> Iterator[str]:
    """Simulating one replica of all that are alike is simulating all of them."""
    if done.lowered.layout.world == 1 or "faults" in tables:
        return
    for attribute in ("flops", "clock", "hbm_bandwidth"):
        change = {f"gpu[0].{attribute}": "0.9999999x"}
        if not _untouched(tables, change):
            continue
        apart = changed(tables, **_set(tables, change))
        step = step_time(executed(apart))
        if not math.isclose(step, step_time(done), rel_tol=_nearly(done)):
            yield f"{step_time(done)} folded, {step} with one GPU's {attribute} apart"


def _nearly(done: Executed) -> float:
    """What the step may move: where ranks have unlike updates, the last of them may be now one and now another."""
    sizes = {len(alike) for alike in done.planned.graph.represents.values()}
    return NEARLY if len(sizes) == 1 else UNLIKE


def awaited(tables: Tables, done: Executed) -> Iterator[str]:
    """What is communicated behind a step's last kernel ends before the next step computes."""
    run = done.run
    for r, program in enumerate(done.planned.graph.programs):
        kernels = np.flatnonzero(program.kind == KERNEL)
        if not len(kernels):
            continue
        behind = np.arange(len(program)) > kernels[-1]
        behind &= program.kind == COMM
        for step in range(1, run.steps if behind.any() else 1):
            ended = run.end[r][step - 1][behind].max()
            begun = run.start[r][step][kernels].min()
            if begun < ended - ALIKE:
                yield f"rank {program.rank} computes {ended - begun:.3g} s before step {step} has what it waits for"


def relabelled(tables: Tables, done: Executed) -> Iterator[str]:
    """Hosts in another order are the same hosts."""
    if any("[" in key for key in tables["cluster"].get("set", {})):
        return  # one host has a GPU that is not like the others
    hosts = done.fabric.hosts
    used = -(-done.lowered.layout.world // max(1, len(done.fabric.gpus) // len(hosts)))
    if (
        len(hosts) < 2
        or used < len(hosts)
        or tables["cluster"]["name"].startswith("h200")
    ):
        return
    order = {"hosts": list(reversed(hosts))}
    step = step_time(executed(changed(tables, placement=order)))
    if not math.isclose(step, step_time(done), rel_tol=ALIKE):
        yield f"{step_time(done)}, and {step} with hosts in another order"


def _no_slower(
    tables: Tables, done: Executed, what: str, sign: int = 1, **sections: Any
) -> Iterator[str]:
    try:
        other = executed(changed(tables, **sections))
    except PrestepError:
        return  # such a part is not in this cluster, or the layout does not divide
    before, step = step_time(done), step_time(other)
    if sign * (step / before - 1) <= SLOWER or _chosen_badly(done, other, sign):
        return
    if _named(done, other, what):
        return
    if "gpu.clock" in what and not _slower_by(tables, sign, sections):
        return
    yield f"{what}: {before:.6g} s becomes {step:.6g} s"


def _slower_by(tables: Tables, sign: int, sections: dict[str, Any]) -> bool:
    """Whether a clock breaks the law though nothing may be drawn beyond the power limit.

    What may be drawn for a moment does more work at a lower clock: power falls faster than the clock.
    """
    with patch.object(engine, "Meter", _Spent):
        one, other = executed(changed(tables)), executed(changed(tables, **sections))
    return sign * (step_time(other) / step_time(one) - 1) > SLOWER


class _Spent(Meter):
    """A power limit at which nothing is ever left to be drawn beyond it."""

    def __init__(self, power: Power, _: float | None, start: float) -> None:
        super().__init__(power, 0.0, start)

    def _add(self, energy: float) -> None:
        pass


def _named(done: Executed, other: Executed, what: str) -> bool:
    """Whether the what-if says why: kernels take longer, or communication waits for those that it meets."""
    one, two = (reported(side.planned, side.run).breakdown for side in (done, other))
    if "gpu." in what:
        return bool(waiting_instead(one, two, grown(one, two, "compute")))
    if what == "host":
        return bool(waiting_instead(one, two, grown(one, two, "host")))
    before, after = (sum(alone(side.planned).values()) for side in (done, other))
    waiting = waiting_instead(one, two, after - before)
    return _of_links(what) and bool(waiting or kernels_instead(one, two))


def _of_links(what: str) -> bool:
    return any(f"'{kind}." in what for kind in LINKS)


def _chosen_badly(done: Executed, other: Executed, sign: int) -> bool:
    """Whether NCCL's tuner takes what lasts longer on the better of two clusters: its estimates are its own.

    The what-if says so. It explains a step only where a communication that is run otherwise is slower for it.
    """
    better, worse = (other, done) if sign > 0 else (done, other)
    choices = changed_choices(worse.planned, better.planned)
    one, two = (alone(side.planned) for side in (worse, better))
    kinds = [(c.axis, c.operation, c.size) for c in choices]
    return any(two[kind] > one[kind] for kind in kinds)


LAWS: dict[str, Callable[[Tables, Executed], Iterator[str]]] = {
    law.__name__: law
    for law in (
        *(sound, repeated, faster, slower, more, fuller),
        *(unfolded, awaited, relabelled, agreed, unmoved),
    )
}


def broken(seed: int, only: str = "", of: str = "keys") -> Iterator[str]:
    """Laws that the scenario of a seed breaks; nothing where it is none."""
    found = DRAWS[of](seed)
    if found is None:
        return
    tables, scenario = found
    planned = plan(scenario)
    done = Executed(planned, execute(planned))
    for name, law in LAWS.items():
        if only in name:
            yield from (f"{name}: {text}" for text in law(tables, done) if text)


def main() -> int:
    """Look for broken laws; 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.laws")
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="", help="laws whose name has this in it")
    parser.add_argument("--of", choices=[*DRAWS], default="keys", help="what is drawn")
    told = parser.parse_args()
    kinds = Counter[str]()
    for seed in range(told.first, told.first + told.count):
        begun = time.process_time()
        try:
            for text in broken(seed, told.only, told.of):
                kinds[text.partition(":")[0]] += 1
                print(f"{seed}: {text}", flush=True)
        except Exception:
            kinds["crash"] += 1
            print(f"{seed}: {traceback.format_exc()[-900:]}", flush=True)
        if (seconds := time.process_time() - begun) > 60:
            print(f"{seed}: {seconds:.0f} s", flush=True)
    print(f"{told.count} scenarios: {dict(kinds)}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
