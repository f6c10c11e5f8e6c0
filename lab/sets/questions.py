"""Small questions to every GPU, framework, cluster and storage system, for `prestep validate probes`.

Nothing here was measured. A step of training hides a constant that is small in it; a question that is about little
else does not: `--compare` lists every answer that moved by more than 0.5 %. Questions go by what there is (all GPUs,
all clusters, ...), none by a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf

from lab.sets.answer import Answer
from lab.sets.cluster_questions import EIGHT, of_clusters
from prestep.sim import api
from prestep.sim.collectives import interval
from prestep.sim.costs import load_gpu, spreads
from prestep.sim.costs.gpu import HARDWARE, Gpu
from prestep.sim.costs.gpu import names as gpu_names
from prestep.sim.costs.interference import BUNDLED
from prestep.sim.costs.kinds import DTYPE_BYTES, KINDS, work
from prestep.sim.costs.power import Load, Meter
from prestep.sim.costs.spreads import slowest_of
from prestep.sim.costs.tables import read_rows
from prestep.sim.graph.kernel import PREFIX, Kernel, product
from prestep.sim.planning.jitter import jitter_of
from prestep.sim.planning.planned import LAUNCH_LATENCY
from prestep.sim.reliability import failures
from prestep.sim.storage import curve, systems
from prestep.workloads.host_costs import host_costs, kernel_gap, table_names
from prestep.workloads.job.faults import Faults

# (m, n, k) of a small product, of a large one, and of one that memory bounds.
PRODUCTS = ((256, 512, 256), (8192, 8192, 8192), (16, 16384, 16384))
SCENARIOS = (
    "llama1b-ddp4",
    "llama8b-fsdp4",
    "llama8b-pp4-1f1b",
    "moe-ep4",
    "resnet50-ddp4",
    "mlp-ddp4",
)
FRAMEWORKS = ("pytorch-compiled", "cuda-graph", "megatron")


def kernels_to_ask() -> Iterator[Kernel]:
    """Every kind of kernel in a small and a large shape, products in every number format."""
    for dtype in (d for d in DTYPE_BYTES if not d.startswith("int")):
        yield from (product(shape, dtype) for shape in PRODUCTS)
        yield Kernel("aten _grouped_mm", (8, 8192, 2048, 4096), dtype, "nt")
    for layout in ("nn", "tn"):
        yield from (product(shape, "bf16", layout) for shape in PRODUCTS)
    for kind, (fields, _) in KINDS.items():
        if kind == "aten _grouped_mm" or Kernel(kind, ()).is_product:
            continue
        for shape in _shapes(fields):
            yield Kernel(kind, shape)


def _shapes(fields: str) -> Sequence[tuple[int, ...]]:
    listed: dict[str, Sequence[tuple[int, ...]]] = {
        "elements": ((4096,), (2**27,)),
        "rows, columns": ((64, 1024), (16384, 8192)),
        "tokens, vocab": ((64, 1024), (8192, 32768)),
        "tokens, hidden, vocab": ((64, 256, 1024), (16384, 4096, 32768)),
        "elements, tensors": ((4096, 4), (2**28, 300)),
        "batch, heads, kv_heads, seq, head_dim": (
            (1, 8, 8, 512, 64),
            (4, 32, 8, 8192, 128),
        ),
        "n, c, h, w, k, r, s, stride": (
            (64, 64, 56, 56, 64, 3, 3, 1),
            (8, 512, 7, 7, 2048, 1, 1, 1),
        ),
        "m, n, k": PRODUCTS,
        "batch, m, n, k": ((16, 8192, 512, 512),),
    }
    return listed.get(fields, ())


def of_gpus(*names: str) -> Iterator[Answer]:
    """Kernels alone, a hundred small ones in a row, and how far the slowest of eight equal GPUs falls behind."""
    for name in names or gpu_names():
        gpu = load_gpu(name)
        for kernel in filter(gpu.roofline.computes, kernels_to_ask()):
            text = f"{name} {kernel.kind} {kernel.dtype} {kernel.layout} {'x'.join(map(str, kernel.shape))}"
            yield Answer(" ".join(text.split()), "kernels", gpu.duration(kernel))
        yield Answer(f"{name}: pause between kernels", "GPUs", gpu.gap)
        yield Answer(
            f"{name}: slowest of {EIGHT}, more than the mean",
            "GPUs",
            slowest_of(EIGHT, gpu.spread) - 1.0,
        )
        yield Answer(
            f"{name}: products among busy GPUs, more than alone",
            "GPUs",
            gpu.crowded - 1.0,
        )
        yield Answer(f"{name}: bytes of memory", "GPUs", gpu.memory)
        for dtype in DTYPE_BYTES:
            large = product(PRODUCTS[1], dtype)
            if not gpu.roofline.computes(large):
                continue
            yield Answer(
                f"{name}: {dtype} products under load", "GPUs", gpu.sustained(large)
            )
        yield from _under_load(name, gpu)


def of_tables() -> Iterator[Answer]:
    """A kernel of every kind, layout and number format that some GPU's own table has: the middle one of its sizes."""
    for path in sorted(HARDWARE.glob("*.csv")):
        gpu, _, what = path.stem.rpartition("-")
        if what not in ("kernels", "published") or not gpu:
            continue
        groups: dict[tuple[str, str, str], list[Kernel]] = {}
        for row in read_rows(path):
            groups.setdefault(
                (row.kernel.kind, row.kernel.layout, row.kernel.dtype), []
            ).append(row.kernel)
        for key, kernels in groups.items():
            kernel = sorted(kernels, key=lambda k: (work(k)[1], k.shape))[
                len(kernels) // 2
            ]
            text = " ".join(filter(None, (gpu, *key)))
            yield Answer(
                f"{text}, of its table", "kernels", load_gpu(gpu).duration(kernel)
            )


def _under_load(name: str, gpu: Gpu) -> Iterator[Answer]:
    """Products in a row for 10, 100 and 1000 ms behind a long pause, and behind other kernels."""
    if gpu.power is None:
        return
    power = gpu.power
    product = power.load(power.product, own=power.in_16_bits)
    for seconds in (0.01, 0.1, 1.0):
        meter = Meter(power)
        yield Answer(
            f"{name}: products for {seconds:g} s",
            "GPUs",
            meter.run(0.0, seconds, product),
        )
    for wait, other in ((0.02, 0.0), (0.02, 0.02)):
        meter = Meter(power, left=power.spent)
        if other:
            meter.run(0.0, other, Load(power.other))
        text = f"{name}: products 20 ms after {'other kernels' if other else 'a pause'}"
        yield Answer(text, "GPUs", meter.run(wait, 0.1, product))


def of_hosts() -> Iterator[Answer]:
    """Every operation of every framework on the host."""
    yield Answer("from a launch to its kernel", "host", LAUNCH_LATENCY)
    for framework in table_names():
        yield from (
            Answer(f"{framework} {op}", "host", cost)
            for op, cost in host_costs(framework).items()
        )
        if (gap := kernel_gap(framework)) is not None:
            yield Answer(f"{framework}: pause between kernels", "host", gap)


def of_interference() -> Iterator[Answer]:
    """Kernels beside a collective of all channels, and the collective beside them."""
    for text in (*BUNDLED.factor, "_softmax", "mm"):
        name, _, layout = text.partition(" ")
        kind = name if name in KINDS else PREFIX + name
        if kind not in KINDS:  # an operation that says its own bytes
            continue
        for shape in _shapes(KINDS[kind][0]):
            kernel = Kernel(kind, shape, "bf16", layout)
            title = f"{text} {'x'.join(map(str, shape))}"
            yield Answer(
                f"{title}: slower beside a collective",
                "beside",
                BUNDLED.slowdown(kernel, 24, 132),
            )
            yield Answer(
                f"a collective: slower beside {title}",
                "beside",
                BUNDLED.contention(kernel),
            )
    large = product(PRODUCTS[1])
    for rate in (560e12, 640e12, 720e12, 770e12, 820e12):
        alone = 2.0 * 8192**3 / rate
        yield Answer(
            f"products alone at {rate:g} flop/s",
            "beside",
            BUNDLED.slowdown(large, 8, 132, alone),
        )


def of_storage() -> Iterator[Answer]:
    """Every storage system by size of request, with one thread and with 64: seconds of a mebibyte."""
    for name in systems.names():
        system = systems.load_system(name)
        for threads in (1, 64):
            for row in curve.table_of(system, threads, curve.Way(inf, inf)):
                for key in (
                    "read_sequential",
                    "write_sequential",
                    "read_random",
                    "write_random",
                ):
                    if row[key]:
                        text = f"{name}: {key.replace('_', ', ')}, {row['request']:g} B, {threads} threads"
                        yield Answer(text, "storage", 2.0**20 / row[key])


VARIED = "llama1b-ddp4"  # the scenario that is run in other ways too


def of_steps() -> Iterator[Answer]:
    """Steps of the bundled scenarios, in every way of running them, with the low end of their interval."""
    for name, changes in _runs():
        text = " ".join((name, *(f"{key}={value}" for key, value in changes.items())))
        result = api.simulate(name, changes)
        yield Answer(text, "steps", result.step_time)
        if result.uncertainty is not None:
            spread = f"{text}: spread of its interval"
            yield Answer(spread, "intervals", result.uncertainty.spread)
        if saves := result.effects.get("checkpoint"):
            for key in ("save_stall", "time_until_durable", "load_time"):
                yield Answer(f"{text}: {key}", "steps", float(saves[key]))


def _runs() -> Iterator[tuple[str, dict[str, object]]]:
    """Scenarios that are run, and what is changed in them."""
    for name in SCENARIOS:
        yield name, {}
    for framework in FRAMEWORKS:
        yield VARIED, {"training.framework": framework}
    yield VARIED, {"training.seq_len": 128, "training.micro_batch": 1}
    saving: dict[str, object] = {"checkpoint.every": 10_000}
    for mode in ("rank0", "sharded", "async"):
        yield VARIED, saving | {"checkpoint.mode": mode}
    for storage in ("weka", "object", "ebs"):
        yield VARIED, saving | {"checkpoint.storage": storage}


def of_widths() -> Iterator[Answer]:
    """Intervals of one second that rests on one thing."""
    for family, grades in spreads.widths().items():
        yield from (
            Answer(f"a second of {family}, {grade}", "intervals", width)
            for grade, width in grades.items()
        )
    for place in interval.widths():
        for share in (0.0, 0.5, 1.0):
            yield Answer(
                f"a collective, {place}, {share:.0%} latency",
                "intervals",
                interval.spread(place, share),
            )


def of_reliability() -> Iterator[Answer]:
    """Noise of a step by default, and failures of a job on 16,384 GPUs by what fails."""
    for name, noise in jitter_of(Faults()).to_dict().items():
        yield Answer(f"noise of {name}", "reliability", float(noise["value"]))
    asked = {
        "gpus": 16384,
        "step_time": "10 s",
        "save": "2 s",
        "lag": "30 s",
        "load": "1 min",
        "spares": 32,
        "days": 30.0,
    }
    job = failures.job_of(asked)
    for name, value in sorted(vars(job).items()):
        numbers = value if isinstance(value, dict) else {"": value}
        yield from (
            Answer(
                f"job of 16,384 GPUs: {name} {key}".strip(),
                "reliability",
                float(number),
            )
            for key, number in numbers.items()
            if isinstance(number, int | float) and number
        )


#: What questions are about -> what asks them, in an order that never changes.
ASK: Mapping[str, Callable[[], Iterator[Answer]]] = {
    "gpus": of_gpus,
    "tables": of_tables,
    "hosts": of_hosts,
    "clusters": of_clusters,
    "interference": of_interference,
    "storage": of_storage,
    "steps": of_steps,
    "widths": of_widths,
    "reliability": of_reliability,
}


def answers(about: Collection[str] = tuple(ASK)) -> Iterator[Answer]:
    """Those about some things, or all of them."""
    for name, ask in ASK.items():
        if name in about:
            yield from ask()
