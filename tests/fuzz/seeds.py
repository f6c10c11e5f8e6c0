"""Good files of every kind that prestep reads, small ones, and the command that reads each."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from prestep.validation.sets.sets import folder_of
from tests.fuzz.job_seeds import jobs
from tests.fuzz.more_seeds import more
from tests.fuzz.mutants import flipped
from tests.fuzz.set_seeds import sets
from tests.fuzz.trace_seeds import REPLAY, binaries, texts
from tests.topologies.importers.test_nccl_xml import HOST
from tests.topologies.importers.test_text_formats import IB, SMI, TREE, YAML
from tests.validation.test_nccl_tests import HEAD, TAIL, row

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
FLAT = "SwitchName=leaf Nodes=n[0-3] LinkSpeed=100\n"


@dataclass(frozen=True)
class Seed:
    """A good file and the words of the command that reads it; FILE and OUT stand for paths.

    `packed`: the file is a zip of the members that the text lists, each under a line `== name`. `binary`: the text has
    a character for each byte. `beside`: files that lie beside it, in the folder BESIDE.
    """

    name: str
    suffix: str
    text: str
    words: tuple[str, ...]
    packed: bool = False
    binary: bool = False
    beside: dict[str, str] = field(default_factory=dict)

    def write(self, text: str, path: Path, flips: int = 0) -> None:
        """Writes a text, damaged or not, as a file of this kind; `flips` says which of its bytes are damaged too."""
        for name, content in self.beside.items():
            (path.parent / name).write_text(content, encoding="utf-8")
        data = flipped(_zip(text) if self.packed else self._raw(text), flips)
        # In place: some file systems take longer to give up blocks than a command takes for the file.
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(data)
            file.truncate()

    def _raw(self, text: str) -> bytes:
        return text.encode("latin-1" if self.binary else "utf-8", "replace")


def _zip(text: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for member in text.split("== ")[1:]:
            name, _, content = member.partition("\n")
            file.writestr(
                name.replace("\0", "?") or "x", content.encode("utf-8", "replace")
            )
    return made.getvalue()


@cache
def _measured() -> str:
    """What `prestep measure` writes, cut short."""
    from tests.validation.test_calibrate_machine import MANIFEST, rows

    members = {"manifest.json": json.dumps(MANIFEST) + "\n"}
    members |= {
        f"{name}.jsonl": "".join(json.dumps(r) + "\n" for r in found[:8])
        for name, found in rows().items()
    }
    return "".join(f"== {name}\n{content}" for name, content in members.items())


def _first(path: str, lines: int) -> str:
    return "".join(
        f"{line}\n"
        for line in (ROOT / path).read_text(encoding="utf-8").splitlines()[:lines]
    )


def _rows(path: Path, *begins: str) -> str:
    """A table's head and the lines that begin so: of several hosts each, but of small models, which are soon simulated."""
    head, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return head + "".join(line for line in lines if line.startswith(begins))


def seeds() -> list[Seed]:
    """One of every kind."""
    read = ("topology", "import", "FILE", "-o", "OUT")
    cases = "validation/cases"
    made = [
        Seed("scenario", ".toml", SCENARIO, ("run", "FILE", "--json")),
        Seed(
            "cluster",
            ".toml",
            (ROOT / "topologies/clusters/h200-leafspine-2x2.toml").read_text(),
            ("topology", "check", "FILE"),
        ),
        Seed(
            "family",
            ".toml",
            (ROOT / "topologies/clusters/rail-h100.toml").read_text(),
            ("topology", "check", "FILE"),
        ),
        Seed(
            "extended",
            ".toml",
            (ROOT / "examples/clusters/our-host.toml").read_text(),
            ("topology", "check", "FILE"),
        ),
        Seed("nccl_xml", ".xml", HOST, read),
        Seed("nvidia_smi", ".txt", SMI, read),
        Seed("slurm", ".conf", TREE, read),
        Seed("slurm_yaml", ".yaml", YAML, read),
        Seed("ibnetdiscover", ".txt", IB, read),
        Seed(
            "nccl_tests",
            ".log",
            HEAD.replace("{program}", "all_reduce_perf")
            + "".join(
                row(1 << n, 20.0 + 2**n / 5e4, 20.0 + 2**n / 5e4) for n in range(10, 28)
            )
            + TAIL,
            ("calibrate", "FILE", "-o", "OUT", "--cluster", "rail-h100", "--force"),
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
            _rows(folder_of("published") / "rows.csv", "mosaic-0211,", "mosaic-0212,"),
            ("validate", "published", "--jobs", "1", "--rows", "FILE"),
        ),
        Seed(
            "measured",
            ".zip",
            _measured(),
            ("calibrate", "FILE", "-o", "OUT.toml", "--force"),
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
    made += [Seed(*parts) for parts in more()]
    made += [
        Seed(*parts[:4], beside=parts[4]) for parts in (*texts(), *jobs(), *sets())
    ]
    return made + [
        Seed(name, suffix, data.decode("latin-1"), REPLAY, binary=True)
        for name, suffix, data in binaries()
    ]
