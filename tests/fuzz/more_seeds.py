"""Further good files: models of others, machines, allocations, jobs, saves, serving, sweeps, logs."""

from __future__ import annotations

import json
from pathlib import Path

from prestep.validation.sets.sets import folder_of
from tests.topologies.importers import test_graph_formats as graphs
from tests.validation.test_choices import LOG
from tests.workloads.test_hugging_face import CONFIGS
from tests.workloads.test_megatron_arguments import LLAMA

ROOT = Path(__file__).parents[2]
MODEL = """[model]
kind = "mlp"
sizes = [256, 256, 8]
"""
TRAINING = """[training]
micro_batch = 8
precision = "bf16"
[parallel]
dp = 4
data_parallel = "ddp"
"""
JOB = f"""[cluster]
name = "h200-host-4"
{MODEL}{TRAINING}[checkpoint]
every = 100000
mode = "sharded"
storage = "nvme"
[dataload]
workers = 4
batch_time = "2 ms"
[faults]
detect = "1 min"
repair = "1 d"
spares = 4
rates = {{ gpu = 9.0 }}
takes = {{ nic = 2 }}
jitter = 1.5
"""
TWO = """[cluster]
name = "h200-leafspine-4x1"
[parallel]
dp = 2
[[jobs]]
name = "a"
model = { kind = "mlp", sizes = [256, 256, 8] }
training = { micro_batch = 4 }
placement = { hosts = ["host0", "host2"] }
[[jobs]]
name = "b"
start = "1 ms"
model = { kind = "mlp", sizes = [512, 512, 8] }
training = { micro_batch = 8 }
placement = { hosts = ["host1", "host3"] }
"""
ASTRA = """topology: [ Ring, FullyConnected, Switch ]  # 3D
npus_count: [ 4, 3, 2 ]
bandwidth: [ 200.0, 100.0, 50.0 ]
latency: [ 50.0, 500.0, 2000.0 ]
"""
NS3 = "3 1 2\n2\n2 0 400Gbps 0.0005ms 0\n2 1 200Gbps 1us 0\n"
HOSTS = "# an allocation\nhost0 slots=2\nhost1 slots=2\n"
MISSES = '"tp: mean" = 0.078\n"compared: h200, pp: mean error grew" = 0.0068\n'


def more() -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Name, suffix, text and words of each."""
    collective = ("collective", "--cluster", "h200-host-4", "--max-bytes", "64")
    saves = folder_of("checkpoint") / "checkpoint_4gpu.jsonl"
    save = saves.read_text(encoding="utf-8").splitlines()[0] + "\n"
    choices = folder_of("nccl-choice") / "logs.json"
    told = json.loads(choices.read_text(encoding="utf-8"))
    logs = dict(list(told.items())[:1])
    constants = (ROOT / "sim/costs/hardware/h200-nccl.toml").read_text(encoding="utf-8")
    serving = (ROOT / "examples/serving/prefill-decode.toml").read_text(
        encoding="utf-8"
    )
    store = (ROOT / "sim/costs/storage/nvme.toml").read_text(encoding="utf-8")
    model = (
        "run",
        f"{ROOT}/tests/fuzz/model.toml",
        "--set",
        "model.file=FILE",
        "--json",
    )
    megatron = (*model, "--set", "training.micro_batch=2")
    return [
        (
            "hugging_face",
            ".json",
            json.dumps(CONFIGS["smollm3-3b"] | {"num_hidden_layers": 2}, indent=0),
            model,
        ),
        (
            "megatron",
            ".sh",
            LLAMA.replace("--num-layers 32", "--num-layers 2"),
            megatron,
        ),
        (
            "hostfile",
            ".txt",
            HOSTS,
            (
                "run",
                "mlp-ddp4",
                "--set",
                "cluster.name=h200-leafspine-2x2",
                "--set",
                "placement.hostfile=FILE",
                "--json",
            ),
        ),
        ("constants", ".toml", constants, (*collective, "--nccl-constants", "FILE")),
        ("nccl_log", ".log", LOG, ("validate", "nccl-choice", "--rows", "FILE")),
        (
            "choices",
            ".json",
            json.dumps(logs, indent=0),
            ("validate", "nccl-choice", "--rows", "FILE"),
        ),
        (
            "job",
            ".toml",
            JOB,
            ("goodput", "FILE", "--days", "2", "--replicas", "2", "--json"),
        ),
        ("two_jobs", ".toml", TWO, ("run", "FILE", "--json")),
        ("serving", ".toml", serving, ("run", "FILE", "--json")),
        ("store", ".toml", store, ("storage", "FILE", "--cluster", "h200-host-4")),
        ("saves", ".jsonl", save, ("validate", "checkpoint", "--rows", "FILE")),
        (
            "known_misses",
            ".toml",
            MISSES,
            ("validate", "reference-collectives", "--known-misses", "FILE"),
        ),
        (
            "sweep",
            ".toml",
            f'[cluster]\nname = "h200-host-4"\n{MODEL}{TRAINING}',
            (
                "sweep",
                "FILE",
                "--grid",
                "training.micro_batch=4,8",
                "-o",
                "OUT",
                "--executor",
                "threads",
                "--jobs",
                "1",
            ),
        ),
        (
            "infragraph",
            ".json",
            json.dumps(graphs.CLOS, indent=0),
            ("topology", "import", "FILE", "-o", "OUT"),
        ),
        ("astra_sim", ".yml", ASTRA, ("topology", "import", "FILE", "-o", "OUT")),
        ("astra_sim_ns3", ".txt", NS3, ("topology", "import", "FILE", "-o", "OUT")),
    ]
