"""Laws of what is predicted beside training steps: requests that are served, steps of RL, replays of recorded runs.

    python -m tests.fuzz.beyond 100 [--first 0] [--of served]

draws scenarios of [inference] and [rl] and traces of small jobs, and prints each law that one breaks.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prestep.sim.analysis.json_text import finite
from prestep.sim.errors import InputError, PrestepError
from prestep.sim.replay.outcome import Outcome
from prestep.sim.replay.replay import replay_files
from prestep.sim.replay.report import as_json
from prestep.sim.rl import step as rl
from prestep.sim.serving import serving
from prestep.sim.serving.pools import WEIGHT, pools_of
from prestep.sim.spec.load import parse_scenario
from prestep.workloads.models.counts import active_parameters
from prestep.workloads.traces.work import GPU
from tests.fuzz.running import impossible
from tests.workloads.traces import synthetic

Chance = random.Random
Tables = dict[str, Any]
#: More of something may cost so much, as a share.
SLOWER = 1e-3
ALIKE = 1e-9
#: Requests a second that never meet: one a quarter of an hour.
LONE = 1e-3
MODELS = ("llama3-8b", "llama3.2-1b", "mixtral-8x7b", "qwen3-0.6b", "deepseek-v2-lite")
#: Clusters with 16 GPUs, or 8.
CLUSTERS = ("dgx-h100", "dgx-a100", "rail-h200", "dgx-b200", "gb200-nvl72")
NOTHING = ("nvlink.bandwidth", "nic.latency", "gpu.flops", "gpu.hbm_bandwidth")
FASTER = ({"nvlink.bandwidth": "2x"}, {"nic.bandwidth": "2x"}, {"gpu.flops": "1.5x"})


def served(chance: Chance, _: Path) -> Iterator[str]:
    """Prefill and decode on GPUs of their own."""
    tables = _serving(chance)
    try:
        before = _answered(tables)
    except InputError:
        return
    yield impossible(json.dumps(before))
    if json.dumps(before) != json.dumps(_answered(tables)):
        yield "another answer the second time"
    yield from _bounded(tables, before)
    lone = {**tables, "inference": {**tables["inference"], "rate": LONE}}
    alone = _answered(lone)
    for change in _changes(chance):
        if (after := _tried(tables, cluster={"set": change})) is not None:
            yield from _no_longer(before, after, str(change))
        if (after := _tried(lone, cluster={"set": change})) is not None:
            yield from _no_later(alone, after, str(change))
    for quantity in NOTHING:
        same = _tried(tables, cluster={"set": {quantity: "1x"}})
        if same is not None and same != before:
            yield f"1x {quantity} changes something"
    yield from _more_requests(tables, before)


def _serving(chance: Chance) -> Tables:
    pools = [chance.choice((1, 2, 4)) for _ in range(2)]
    return {
        "model": {"name": chance.choice(MODELS)},
        "cluster": {"name": chance.choice(CLUSTERS)},
        "inference": {
            "prefill_gpus": pools[0],
            "decode_gpus": pools[1],
            "prefill_tp": chance.choice([n for n in (1, 2, 4) if n <= pools[0]]),
            "decode_tp": chance.choice([n for n in (1, 2, 4) if n <= pools[1]]),
            "prompt": chance.choice((1, 100, 1024, 8192)),
            "output": chance.choice((1, 2, 64, 500)),
            "requests": chance.choice((1, 3, 16, 40)),
            "rate": chance.choice((0.1, 1.0, 20.0, 1e4)),
            "path": chance.choice(("auto", "auto", "nvlink", "rdma", "host", "nvme")),
            "copies": chance.choice((1, 1, 2)),
            "reuse": chance.choice((0.0, 0.0, 0.3, 1.0)),
            "overlap": chance.random() < 0.6,
            "decode_batch": chance.choice((1, 4, 16)),
            "kv_dtype": chance.choice(("bf16", "fp8")),
            "tier": chance.choice(("hbm", "hbm", "cpu", "nvme")),
        },
    }


def _answered(tables: Tables) -> Tables:
    told = serving.predict(parse_scenario(tables, "drawn"))
    return dict(finite(told))


def _with(tables: Tables, **sections: Tables) -> Tables:
    again = copy.deepcopy(tables)
    for name, keys in sections.items():
        again[name] = {**again.get(name, {}), **keys}
    return again


def _tried(tables: Tables, **sections: Tables) -> Tables | None:
    """The answer with other keys; None where the cluster has no such part."""
    try:
        return _answered(_with(tables, **sections))
    except PrestepError:
        return None


def _changes(chance: Chance) -> list[dict[str, str]]:
    return [*FASTER, {"gpu.hbm_bandwidth": chance.choice(("1.1x", "2x"))}]


def _no_longer(before: Tables, after: Tables, what: str) -> Iterator[str]:
    """Nothing that a request does by itself takes longer, unless NCCL's tuner chooses what does; the answer says so."""
    known = {"prefill_time": "prefill", "time_per_output_token": "decode"}
    for key in (*known, "transfer_alone"):
        if _chosen(before, known.get(key, "")) != _chosen(after, known.get(key, "")):
            continue
        if after[key] > before[key] * (1 + SLOWER):
            yield f"{what}: {key} of {before[key]:.6g} s becomes {after[key]:.6g}"


def _no_later(before: Tables, after: Tables, what: str) -> Iterator[str]:
    """Requests that come one after another are no later.

    Requests at once may be: prefills that end sooner put more caches on a link together, and each waits for the others.
    """
    if before["all_reduces"] != after["all_reduces"]:
        return
    if after["seconds"] > before["seconds"] * (1 + SLOWER):
        yield f"{what}: {before['seconds']:.6g} s become {after['seconds']:.6g}"
    one, two = (told["time_to_first_token"]["mean"] for told in (before, after))
    if two > one * (1 + SLOWER):
        yield f"{what}: first tokens after {one:.6g} s come after {two:.6g}"


def _chosen(told: Tables, pool: str) -> str:
    return str(told["all_reduces"].get(pool, ""))


def _bounded(tables: Tables, told: Tables) -> Iterator[str]:
    """Parts sum to the whole, no link carries more than it can, and nothing is faster than its limits."""
    first, asked = told["time_to_first_token"], tables["inference"]
    if not math.isclose(sum(told["parts"].values()), first["mean"], rel_tol=1e-6):
        yield f"parts of {sum(told['parts'].values())} in {first['mean']}"
    for link in told["links"]:
        if link["utilisation"] > 1 + 1e-6:
            yield f"{link['name']} used {link['utilisation']}"
    pools = pools_of(parse_scenario(tables, "drawn"))
    active = active_parameters(pools.model)
    new = asked["prompt"] - min(
        asked["prompt"] - 1, round(asked["prompt"] * asked["reuse"])
    )
    computed = 2.0 * active * new / asked["prefill_tp"] / pools.gpu.peak["bf16"]
    if told["prefill_time"] < computed * (1 - 0.05):  # the head is not prefilled
        yield f"prefill of {told['prefill_time']} s, arithmetic takes {computed}"
    read = active * WEIGHT / asked["decode_tp"] / pools.gpu.bandwidth
    if told["time_per_output_token"] < read * (1 - ALIKE):
        yield f"a token in {told['time_per_output_token']} s, weights take {read}"
    if first["min"] < told["prefill_time"] * (1 - ALIKE):
        yield f"a first token after {first['min']} s, before its prefill"
    last = (asked["requests"] - 1) / asked["rate"] + told["prefill_time"]
    last += asked["output"] * told["time_per_output_token"] * (1 - 1e-6)
    if len(pools.decode) == 1 and told["seconds"] < last:
        yield f"all done after {told['seconds']} s, the last one takes until {last}"


def _more_requests(tables: Tables, before: Tables) -> Iterator[str]:
    """More of the work is no faster, and a cache of half the bytes is half as large."""
    asked = tables["inference"]
    for key, of in (
        *(("prompt", "prefill_time"), ("prompt", "kv_bytes")),
        *(("output", "seconds"), ("requests", "seconds")),
    ):
        after = _tried(tables, inference={key: 2 * asked[key]})
        if after is not None and after[of] < before[of] * (1 - SLOWER):
            yield f"twice the {key}: {of} of {before[of]:.6g} becomes {after[of]:.6g}"
    less = _tried(tables, inference={"reuse": 0.0})
    if less is not None and less["prefill_time"] < before["prefill_time"] * (1 - ALIKE):
        yield "a prefill of all is shorter than that of what is not there"


def learned(chance: Chance, _: Path) -> Iterator[str]:
    """A step of reinforcement learning."""
    tables = _learning(chance)
    try:
        before = rl.predict(parse_scenario(tables, "drawn"))
    except InputError:
        return
    for name, seconds in before.phases.items():
        if not (math.isfinite(seconds) and seconds >= 0):
            yield f"{name} of {seconds}"
    if not math.isclose(sum(before.exposed.values()), before.step_time, rel_tol=1e-9):
        yield f"phases of {sum(before.exposed.values())} in {before.step_time}"
    again = rl.predict(parse_scenario(tables, "drawn"))
    if dict(again.phases) != dict(before.phases):
        yield "another answer the second time"
    for quantity in NOTHING:
        same = _learned(_with(tables, cluster={"set": {quantity: "1x"}}))
        if same not in (None, before.step_time):
            yield f"1x {quantity}: {before.step_time} becomes {same}"
    for change in FASTER:
        after = _learned(_with(tables, cluster={"set": change}))
        if after is not None and after > before.step_time * (1 + SLOWER):
            yield f"{change}: {before.step_time:.6g} becomes {after:.6g}"
    for key in ("prompts", "generations"):
        after = _learned(_with(tables, rl={key: 2 * tables["rl"][key]}))
        if after is not None and after < before.step_time * (1 - SLOWER):
            yield f"twice the {key}: {before.step_time:.6g} becomes {after:.6g}"


def _learning(chance: Chance) -> Tables:
    return {
        "model": {"name": chance.choice(("llama3.2-1b", "qwen3-0.6b", "llama3-8b"))},
        "cluster": {"name": chance.choice(CLUSTERS)},
        "training": {"framework": chance.choice(("megatron", "automodel"))},
        "parallel": {"tp": chance.choice((1, 2))},
        "rl": {
            "algorithm": chance.choice(("grpo", "dapo")),
            "prompts": chance.choice((8, 16, 64)),
            "generations": chance.choice((4, 8)),
            "mean_length": chance.choice((300, 700)),
            "max_length": chance.choice((1024, 2048)),
            "lengths": chance.choice(("lognormal", "exponential", "constant")),
            "packing": chance.random() < 0.6,
            "off_policy_steps": chance.choice((0, 0, 1)),
            "generation_tp": chance.choice((1, 2, 4)),
            "cuda_graphs": chance.random() < 0.7,
        },
    }


def _learned(tables: Tables) -> float | None:
    try:
        return rl.predict(parse_scenario(tables, "drawn")).step_time
    except PrestepError:
        return None


#: Changes of a replay that change nothing.
SAME = (
    *("gpu.flops=1x", "gpu.clock=1x", "gpu.hbm_bandwidth=1x", "kernels.gemm=1x"),
    *("kernels.communication=1x", "cluster.host_factor=1", "nvlink.bandwidth=1x"),
    *("nvlink.latency=1x", "kernels.other=1"),
)
QUICKER = (
    *("gpu.flops=2x", "kernels.gemm=0.5x", "kernels.communication=0.5x"),
    *("nvlink.bandwidth=2x", "cluster.host_factor=0.5", "gpu.hbm_bandwidth=2x"),
)


def replayed(chance: Chance, folder: Path) -> Iterator[str]:
    """A recorded run, as it was and changed."""
    paths, world = _recorded(chance, folder)
    as_recorded = replay_files(paths)
    simulated = replay_files(paths, "simulated", "h200-host-4")
    for before, mode in ((as_recorded, "recorded"), (simulated, "simulated")):
        yield impossible(json.dumps(finite(as_json(before))))
        yield from _above_kernels(before)
        for change in SAME:
            same = _replayed(paths, mode, change)
            if same is not None and same != before.step_time:
                yield f"{mode}, {change}: {before.step_time} becomes {same}"
    if world > 1:
        for change in (f"parallel.dp={world}", "nvlink.bandwidth=1x"):
            same = _replayed(paths, "simulated", change)
            if same is not None and not math.isclose(
                same, simulated.step_time, rel_tol=ALIKE
            ):
                yield f"{change}: {simulated.step_time} becomes {same}"
    for change in QUICKER:
        after = _replayed(paths, "simulated", change)
        if after is not None and after > simulated.step_time * (1 + SLOWER):
            yield f"{change}: {simulated.step_time:.6g} becomes {after:.6g}"


def _replayed(paths: list[Path], mode: Any, change: str) -> float | None:
    cluster = "h200-host-4" if mode == "simulated" else ""
    try:
        return replay_files(paths, mode, cluster, [change]).step_time
    except InputError:
        return None


def _recorded(chance: Chance, folder: Path) -> tuple[list[Path], int]:
    """Traces of a small job whose kernels and calls take other times than each other."""
    world = chance.choice((1, 2, 4))
    made = {"steps": chance.choice((1, 2, 3)), "late": chance.choice((0.0, 0.0, 350.0))}
    paths = synthetic.save(folder, world, **made)
    return paths, world


def _above_kernels(done: Outcome) -> Iterator[str]:
    """No step is shorter than the kernels of one of its streams, and each of them starts after those before it."""
    last = done.steps[-1].step
    number = [name for name, _, _ in done.replay.job.works[0].steps].index(last)
    for index, nodes in enumerate(done.replay.programs):
        start, end = (times[index][0] for times in (done.run.start, done.run.end))
        busy = Counter[Any]()
        until = dict[Any, float]()
        for i, node in enumerate(nodes):
            if node.kind != GPU or node.op.step != number:
                continue
            if start[i] < until.get(node.stream, 0.0) - 1e-9:
                yield f"kernel {i} of rank {index} starts before the one before it ends"
            until[node.stream] = end[i]
            busy[node.stream] += end[i] - start[i]
        if busy and done.step_time < max(busy.values()) * (1 - 1e-6):
            yield f"step of {done.step_time} s, kernels of {max(busy.values())}"


OF: dict[str, Callable[[Chance, Path], Iterator[str]]] = {
    law.__name__: law for law in (served, learned, replayed)
}


def broken(seed: int, of: str) -> Iterator[str]:
    """Laws that the input of a seed breaks."""
    with tempfile.TemporaryDirectory() as name:
        yield from filter(None, OF[of](Chance(f"{of} {seed}"), Path(name)))


def main() -> int:
    """Look for broken laws; 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.beyond")
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--of", choices=[*OF], default="")
    told = parser.parse_args()
    kinds = Counter[str]()
    for seed in range(told.first, told.first + told.count):
        of = told.of or [*OF][seed % len(OF)]
        try:
            for text in broken(seed, of):
                kinds[of] += 1
                print(f"{of} {seed}: {text}", flush=True)
        except Exception:
            kinds["crash"] += 1
            print(f"{of} {seed}: {traceback.format_exc()[-900:]}", flush=True)
    print(f"{told.count} inputs: {dict(kinds)}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
