"""Good files of every kind that prestep reads, small ones, and the command that reads each."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.more_seeds import more
from tests.topologies.importers.test_nccl_xml import HOST
from tests.topologies.importers.test_text_formats import IB, SMI, TREE, YAML
from tests.validation.test_nccl_tests import HEAD, TAIL, row
from tests.workloads.traces.synthetic import step

ROOT = Path(__file__).parents[2]
SCENARIO = """[cluster]
name = "h200-host-4"
gpus = 4
set = { "nvlink.bandwidth" = "2x" }
[model]
kind = "transformer"
hidden = 256
layers = 2
heads = 8
kv_heads = 4
ffn = 512
vocab = 1000
gated = true
[training]
seq_len = 128
micro_batch = 2
grad_accumulation = 2
precision = "bf16"
[parallel]
dp = 2
tp = 2
data_parallel = "ddp"
bucket_cap = "25 MiB"
[nccl]
algo = "ring"
[faults]
slow_rank = 1
slow_factor = 1.5
"""
RESULT = {
    "step_time": 1.0,
    "breakdown": {"compute": 0.75, "exposed_dp": 0.25},
    "evidence": {"measured": 0.5, "guess": 0.5},
    "uncertainty": {
        "low": 0.9,
        "high": 1.1,
        "nominal": 0.9,
        "parts": [
            {
                "constant": "run to run",
                "grade": "measured",
                "seconds": 1.0,
                "spread": 0.02,
            }
        ],
    },
    "fallbacks": [
        {"what": "kernel x: no table", "grade": "guess", "count": 2, "share": 0.5}
    ],
    "warnings": ["w"],
    "link_kinds": [{"kind": "nvlink", "shadow_price": 0.1}],
    "out_of_memory": {"fits": False, "rank": 0, "largest_owner": "gradients"},
}
CLUSTER = """name = "mine"
family = "rail-optimized"
hosts = 2
[params]
gpus_per_host = 4
"""
FLAT = "SwitchName=leaf Nodes=n[0-3] LinkSpeed=100\n"


@dataclass(frozen=True)
class Seed:
    """A good file and the words of the command that reads it; FILE and OUT stand for paths.

    `packed`: the file is a zip of the members that the text lists, each under a line `== name`.
    """

    name: str
    suffix: str
    text: str
    words: tuple[str, ...]
    packed: bool = False

    def write(self, text: str, path: Path) -> None:
        """Writes a text, damaged or not, as a file of this kind."""
        data = text.encode("utf-8", "replace")
        path.write_bytes(_zip(text) if self.packed else data)


def _zip(text: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for member in text.split("== ")[1:]:
            name, _, content = member.partition("\n")
            file.writestr(
                name.replace("\0", "?") or "x", content.encode("utf-8", "replace")
            )
    return made.getvalue()


def _measured() -> str:
    """What `prestep measure` writes, cut short."""
    from tests.validation.test_calibrate_machine import MANIFEST, rows

    members = {"manifest.json": json.dumps(MANIFEST)}
    members |= {
        f"{name}.jsonl": "".join(json.dumps(r) + "\n" for r in found[:8])
        for name, found in rows().items()
    }
    return "".join(f"== {name}\n{content}\n" for name, content in members.items())


def _first(path: str, lines: int) -> str:
    return "".join(
        f"{line}\n"
        for line in (ROOT / path).read_text(encoding="utf-8").splitlines()[:lines]
    )


def _trace() -> str:
    events = step(0, 0, 0.0, 2)[0]
    return json.dumps(
        {"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 2}},
        indent=0,
    )


def seeds() -> list[Seed]:
    """One of every kind."""
    read = ("topology", "import", "FILE", "-o", "OUT")
    cases = "validation/cases"
    custom = next((ROOT / "examples").glob("*cluster*.toml"), None)
    made = [
        Seed("scenario", ".toml", SCENARIO, ("run", "FILE", "--json")),
        Seed(
            "cluster",
            ".toml",
            (ROOT / "topologies/clusters/h200-leafspine-2x2.toml").read_text(),
            ("topology", "check", "FILE"),
        ),
        Seed("family", ".toml", CLUSTER, ("topology", "check", "FILE")),
        Seed("nccl_xml", ".xml", HOST, read),
        Seed("nvidia_smi", ".txt", SMI, read),
        Seed("slurm", ".conf", TREE, read),
        Seed("slurm_yaml", ".yaml", YAML, read),
        Seed("ibnetdiscover", ".txt", IB, read),
        Seed(
            "nccl_tests",
            ".log",
            HEAD.replace("{program}", "all_reduce_perf")
            + row(1024)
            + row(1048576)
            + TAIL,
            ("calibrate", "FILE", "-o", "OUT", "--cluster", "dgx-h100", "--force"),
        ),
        Seed(
            "steps",
            ".jsonl",
            _first(f"{cases}/h200/straggler_4gpu.jsonl", 1),
            ("validate", "h200", "--jobs", "1", "--rows", "FILE"),
        ),
        Seed(
            "collectives",
            ".jsonl",
            _first(f"{cases}/h200/collectives_unseen_4gpu.jsonl", 6),
            ("validate", "collectives", "--rows", "FILE"),
        ),
        Seed(
            "csv",
            ".csv",
            _first(f"{cases}/reference-collectives/reference.csv", 5),
            ("validate", "published-collectives", "--rows", "FILE"),
        ),
        Seed(
            "published",
            ".csv",
            _first(f"{cases}/published/rows.csv", 3),
            ("validate", "published", "--jobs", "1", "--rows", "FILE"),
        ),
        Seed("trace", ".json", _trace(), ("replay", "FILE", "--json")),
        Seed(
            "measured",
            ".zip",
            _measured(),
            ("calibrate", "FILE", "-o", "OUT", "--force"),
            packed=True,
        ),
        Seed(
            "override",
            ".toml",
            SCENARIO,
            ("whatif", "FILE", "--set", "training.seq_len=256", "--json"),
        ),
        Seed("result", ".json", json.dumps(RESULT, indent=0), ("explain", "FILE")),
        Seed(
            "base",
            ".json",
            json.dumps(
                {
                    "set": "x",
                    "cases": [{"id": "a", "predicted": 1.0, "signed_error": 0.1}],
                },
                indent=0,
            ),
            ("validate", "checkpoint", "--jobs", "1", "--compare", "FILE"),
        ),
    ]
    if custom:
        made.append(
            Seed("example", ".toml", custom.read_text(), ("topology", "check", "FILE"))
        )
    return made + [Seed(*told) for told in more()]
