"""`python -m lab.report.same_programs`: the same model as a captured program and as a scenario, how far they are apart.

Programs are `lab/cases/same/train.py` with the arguments in CASES. `--captures` keeps recordings, which are made once;
`--clusters` names those on which each pair is predicted; `every` is one for each GPU that has a file. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from prestep.sim.costs.gpu import names as gpu_names
from prestep.sim.errors import PrestepError
from prestep.sim.graph.kernel import Kernel
from prestep.sim.graph.opgraph import KERNEL
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import execute, plan, reported
from prestep.sim.spec.load import load_scenario, parse_scenario
from prestep.topologies import load_cluster
from prestep.topologies.files.bundled import cluster_names
from prestep.workloads.capture.recorder import captured

PROGRAM = Path(__file__).parent.parent / "cases" / "same" / "train.py"
SIZES = {
    "kind": "transformer",
    "hidden": 4096,
    "layers": 2,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14336,
    "vocab": 32000,
}
PLAIN = SIZES | {"gated": True, "tied_embeddings": False}
ROUTED = {"experts": 8, "experts_per_token": 2}
LATENT = {
    "heads": 16,
    "kv_heads": 16,
    "ffn": 2048,
    "head_dim": 128,
    "v_head_dim": 128,
    "shared_experts": 1,
}
LATENT |= {"q_lora_rank": 1536, "kv_lora_rank": 512, "rope_head_dim": 64}
PICTURES = {
    "kind": "vit",
    "hidden": 1024,
    "layers": 4,
    "heads": 16,
    "ffn": 4096,
    "patch": 16,
}
MODELS = {
    "vit": PICTURES,
    "llama": PLAIN,
    "mixtral": PLAIN | ROUTED,
    "deepseek": PLAIN | ROUTED | LATENT,
}
#: Programs by name: arguments of train.py. Ranks are those of `world`.
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama ddp 4": {"mode": "ddp", "world": 4},
    "llama fsdp 4": {"mode": "fsdp", "world": 4},
    "llama tp 2": {"mode": "tp", "world": 2},
    "llama pp 2": {"mode": "pp", "world": 2},
    "llama checkpointed": {"checkpoint": True},
    "llama compiled": {"compile": True},
    "llama compiled ddp 4": {"compile": True, "mode": "ddp", "world": 4},
    "llama compiled fsdp 4": {"compile": True, "mode": "fsdp", "world": 4},
    "llama compiled tp 2": {"compile": True, "mode": "tp", "world": 2},
    "llama compiled, checkpoint within": {"compile": True, "checkpoint": "within"},
    "llama compiled, checkpoint around": {"compile": True, "checkpoint": "around"},
    "llama compiled fsdp 4, checkpoint around": {
        "compile": True,
        "checkpoint": "around",
        "mode": "fsdp",
        "world": 4,
    },
    "llama fp32": {"dtype": "float32"},
    "mixtral ddp 4": {"layer": "mixtral", "mode": "ddp", "world": 4},
    "mixtral fsdp 4": {"layer": "mixtral", "mode": "fsdp", "world": 4},
    "mixtral ep 4": {"layer": "mixtral", "mode": "ddp", "world": 4, "ep": 4},
    "mixtral ep 4, own group": {
        "layer": "mixtral",
        "mode": "ddp",
        "world": 4,
        "ep": 4,
        "own": True,
    },
    "mixtral compiled": {"layer": "mixtral", "compile": True},
    "vit": {"layer": "vit", "batch": 64},
    "vit ddp 4": {"layer": "vit", "batch": 64, "mode": "ddp", "world": 4},
    "vit fsdp 4": {"layer": "vit", "batch": 64, "mode": "fsdp", "world": 4},
    "vit checkpointed": {"layer": "vit", "batch": 64, "checkpoint": True},
    "vit compiled": {"layer": "vit", "batch": 64, "compile": True},
    "deepseek": {"layer": "deepseek"},
    "deepseek fsdp 4": {"layer": "deepseek", "mode": "fsdp", "world": 4},
    "deepseek checkpointed": {"layer": "deepseek", "checkpoint": True},
}


@dataclass(frozen=True)
class Side:
    """A predicted step: seconds, of it all kernels one after the other, bytes at the peak and on each kind of link."""

    step: float
    kernels: float
    peak: float
    links: dict[str, float]


def side_of(planned: Planned) -> Side:
    result = reported(planned, execute(planned))
    peak = max(m.total for m in result.peak_memory.values())
    links = {each.kind: each.bytes for each in result.link_kinds}
    seconds = sum(planned.durations[k] for k in launched(planned))
    return Side(result.step_time, float(seconds), peak, links)


def launched(planned: Planned) -> list[int]:
    """Kernels of the first rank."""
    program = planned.graph.programs[0]
    return [int(k) for k in program.payload[program.kind == KERNEL]]


def program_of(case: dict[str, Any], recording: Path) -> Path:
    """The recording of a program, which is made unless it is there."""
    if not recording.exists():
        told = {"layer": "llama"} | case
        captured(
            (str(PROGRAM), json.dumps(told)),
            recording,
            world=case.get("world", 1),
            stop=True,
            quiet=True,
        )
    return recording


def one_of_each_gpu(folder: Path) -> list[str]:
    """The smallest cluster with four GPUs of each kind; a GPU that no bundled cluster has is put into a plain host."""
    sizes: dict[str, tuple[int, str]] = {}
    for name in cluster_names():
        fabric = load_cluster(name)
        if len(fabric.gpus) >= 4 and fabric.gpu_model:
            found = len(fabric.gpus), name
            sizes[fabric.gpu_model] = min(sizes.get(fabric.gpu_model, found), found)
    for gpu in set(gpu_names()) - set(sizes):
        file = folder / f"{gpu}.toml"
        file.write_text(f'family = "host"\ngpu = "{gpu}"\n')
        sizes[gpu] = 8, str(file)
    return [sizes[gpu][1] for gpu in sorted(sizes)]


def _where(cluster: str, gpus: int) -> dict[str, Any]:
    return {"file" if cluster.endswith(".toml") else "name": cluster, "gpus": gpus}


def scenario_of(case: dict[str, Any], cluster: str) -> dict[str, Any]:
    world, mode = case.get("world", 1), case.get("mode", "single")
    parallel: dict[str, Any] = {"dp": world, "data_parallel": "none"}
    batch, length = (64, 197) if case.get("layer") == "vit" else (1, 4096)
    training: dict[str, Any] = {"seq_len": length, "micro_batch": batch}
    pytorch: dict[str, Any] = {"version": "2.13"}  # that records the programs
    if mode == "ddp":
        parallel |= {"data_parallel": "ddp", "gradient_as_bucket_view": True}
    elif mode == "fsdp":
        parallel |= {"data_parallel": "fsdp", "reshard_root": True}
    elif mode == "tp":
        parallel |= {"dp": 1, "tp": world}
    elif mode == "pp":
        parallel |= {"dp": 1, "pp": world, "schedule": "1f1b"}
        training |= {"microbatches": 2}
    if "ep" in case:
        parallel["ep"] = case["ep"]
        pytorch["expert_group"] = "own" if case.get("own") else "ddp"
    training["framework"] = (
        "pytorch-compiled" if case.get("compile") else "pytorch-eager"
    )
    training["precision"] = {"float32": "fp32"}.get(case.get("dtype", ""), "bf16")
    if case.get("checkpoint"):
        training["recompute"] = "full"
        if case["checkpoint"] == "around":
            pytorch["checkpoint_compiled"] = "around"
    tables = {
        "cluster": _where(cluster, world),
        "model": MODELS[case.get("layer", "llama")],
        "training": training,
        "parallel": parallel,
        "pytorch": pytorch,
    }
    return {name: table for name, table in tables.items() if table}


def sides(
    case: dict[str, Any], recording: Path, cluster: str
) -> tuple[Planned, Planned]:
    """The scenario's step and the program's."""
    by_hand = plan(parse_scenario(scenario_of(case, cluster), "same.toml"))
    cells = _where(cluster, case.get("world", 1)).items()
    where = [f"cluster.{key}={value}" for key, value in cells]
    return by_hand, plan(load_scenario(program_of(case, recording), where))


def compare(
    name: str, folder: Path, cluster: str, opened: bool = False
) -> tuple[float, ...]:
    """How far the scenario is from the program: step, kernels, peak; whether links carry the same."""
    recording = folder / f"{name.replace(' ', '-').replace(',', '')}.capture"
    plans = sides(CASES[name], recording, cluster)
    hand, program = map(side_of, plans)
    same = all(
        abs(hand.links.get(k, 0) - v) <= 1e-9 * max(v, 1)
        for k, v in program.links.items()
    )
    off = [
        getattr(hand, key) / getattr(program, key) - 1
        for key in ("step", "kernels", "peak")
    ]
    print(
        f"{name:44} {cluster:14} step {program.step * 1e3:8.2f} ms {off[0]:+7.2%}  kernels {off[1]:+7.2%}  "
        f"peak {program.peak / 1e9:7.3f} GB {off[2]:+7.2%}  links {'equal' if same else 'APART'}",
        flush=True,
    )
    if opened:
        show(*plans)
    return (*off, float(not same))


def show(hand: Planned, program: Planned) -> None:
    """Kernels that one side has and the other has not, and what either's host spends."""
    one, other = map(_kernels, (hand, program))
    for title, more in (("scenario", one - other), ("program", other - one)):
        for (kind, size), n in sorted(more.items()):
            print(f"    {title:9} {n:4} x {kind} {size / 1e6:.3f} MB")
    for side, planned in (("scenario", hand), ("program", program)):
        first = planned.graph.programs[0]
        print(
            f"    {side:9} host {first.host.sum() * 1e3:.3f} ms, {len(first.kind)} operations"
        )


def _kernels(planned: Planned) -> Counter[tuple[str, float]]:
    found = Counter[tuple[str, float]]()
    for index in launched(planned):
        kernel = planned.graph.kernels[index]
        found[
            (kernel.kind, kernel.bytes) if isinstance(kernel, Kernel) else ("chain", 0)
        ] += 1
    return found


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captures", type=Path, default=Path("captures"))
    parser.add_argument("--only", default="", help="a part of a case's name")
    parser.add_argument("--clusters", nargs="*", default=["h200-host-4"])
    parser.add_argument("--open", action="store_true", help="say which kernels differ")
    options = parser.parse_args(arguments)
    options.captures.mkdir(exist_ok=True)
    clusters = options.clusters
    if clusters == ["every"]:
        clusters = one_of_each_gpu(options.captures)
    found: dict[str, dict[str, tuple[float, ...]]] = {each: {} for each in clusters}
    for name in CASES:
        for cluster in clusters if options.only in name else ():
            try:
                off = compare(name, options.captures, cluster, options.open)
            except PrestepError as error:
                reason = str(error).splitlines()[0]
                print(f"{name:44} {cluster:14} refused: {reason}", flush=True)
            else:
                found[cluster][name] = off
    print(
        "\n| cluster | step, median, worst | over 1 % | kernels, worst | peak, worst | links equal |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for cluster, rows in found.items():
        if rows:
            print(summary(Path(cluster).stem, rows))


def summary(cluster: str, rows: dict[str, tuple[float, ...]]) -> str:
    """A line of the table of all clusters."""
    steps, kernels, peaks, apart = zip(*rows.values(), strict=True)
    name = max(rows, key=lambda each: abs(rows[each][0]))
    of = f"of {len(rows)}"
    cells = (
        cluster,
        f"{median(map(abs, steps)):.2%}, {rows[name][0]:+.2%} ({name})",
        f"{sum(abs(step) > 0.01 for step in steps)} {of}",
        f"{max(kernels, key=abs):+.2%}",
        f"{max(peaks, key=abs):+.2%}",
        f"{apart.count(0.0)} {of}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
