"""Good files of every kind that prestep reads, small ones, and the command that reads each."""

from __future__ import annotations

import io
import json
import tomllib
import zipfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from prestep.validation.sets.sets import folder_of
from tests.fuzz import trace_seeds
from tests.lab.test_choices import LOG
from tests.topologies.importers.test_graph_formats import CLOS
from tests.topologies.importers.test_nccl_xml import HOST
from tests.topologies.importers.test_text_formats import IB, SMI, TREE, YAML
from tests.validation.test_calibrate_machine import MANIFEST, rows
from tests.validation.test_nccl_tests import HEAD, TAIL, row
from tests.workloads.recipe_examples import EXAMPLES, text_with
from tests.workloads.test_hugging_face import CONFIGS
from tests.workloads.test_megatron_arguments import LLAMA

ROOT = Path(__file__).parents[2]
#: Files that are nothing but their text.
TEXTS = Path(__file__).with_name("good.toml")
IMPORT = "topology import FILE -o OUT"
DOCTOR = "doctor nccl FILE --cluster rail-h100 --json"
MODEL = f"run {ROOT}/tests/fuzz/model.toml --set model.file=FILE --json"
#: Files of this repository: name -> path, words.
HERE = {
    "cluster": ("topologies/clusters/h200-leafspine-2x2.toml", "topology check FILE"),
    "family": ("topologies/clusters/rail-h100.toml", "topology check FILE"),
    "extended": ("examples/clusters/our-host.toml", "topology check FILE"),
    "serving": ("examples/serving/prefill-decode.toml", "run FILE --json"),
    "store": ("sim/costs/storage/nvme.toml", "storage FILE --cluster h200-host-4"),
    "submission": (
        "examples/measured/submission.jsonl",
        "submit FILE -o OUT --json",
    ),
    "constants": (
        "sim/costs/hardware/h200-nccl.toml",
        "collective --cluster h200-host-4 --max-bytes 64 --nccl-constants FILE",
    ),
}
#: Sets of measured rows: name of the seed -> set, its file, how many rows, the beginning or part of those that are soon predicted.
ROWS = {
    "steps": ("h200", "straggler_4gpu.jsonl", 1, ""),
    "collectives": ("collectives", "../h200/collectives_unseen_4gpu.jsonl", 6, ""),
    "csv": ("published-collectives", "../reference-collectives/reference.csv", 4, ""),
    "published": ("published", "rows.csv", 1, "mosaic-0211,"),
    "saves": ("checkpoint", "checkpoint_4gpu.jsonl", 1, ""),
    "rows_energy": ("energy", "train_h100_power.jsonl", 2, ""),
    "rows_h100": ("h100", "train_1gpu.jsonl", 2, ""),
    "rows_leafspine": ("leafspine", "../h200/leafspine_degraded_4gpu.jsonl", 2, ""),
    "rows_h200-whatif": ("h200-whatif", "../h200/whatif_channels_4gpu.jsonl", 2, ""),
    "rows_collectives-leafspine": (
        *("collectives-leafspine", "../h200/collectives_leafspine.jsonl"),
        *(2, ""),
    ),
    "rows_automodel": ("automodel", "rows.csv", 2, "Qwen2.5 7B"),
    "rows_low-precision": ("low-precision", "rows.csv", 2, "B200"),
    "rows_rl": ("rl", "rows.csv", 2, "LLAMA3.1_8B"),
    "rows_schedules": ("schedules", "primus.csv", 2, "llama2 7B"),
    "rows_lora": ("lora", "rows.csv", 2, "config_DGXH200_1x8x2xtp1pp1cp2.sh"),
    "rows_wall": ("wall", "liquid.jsonl", 2, ""),
}  # fmt: skip
#: Where rows were measured that do not say it.
WHERE = {"energy": " --cluster dgx-h100"}


@dataclass(frozen=True)
class Seed:
    """A good file and the words of the command that reads it; FILE and OUT stand for paths.

    `members`: the file is a zip of the parts of its text, each under a line `== name`. `binary`: the text has
    a character for each byte. `beside`: files that lie beside it, in the folder BESIDE.
    """

    name: str
    suffix: str
    text: str
    words: tuple[str, ...]
    members: bool = False
    binary: bool = False
    beside: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        """The bytes of the good file."""
        return self.encoded(self.text)

    def encoded(self, text: str) -> bytes:
        """The bytes of a text, damaged or not, as a file of this kind."""
        if self.members:
            return _zipped(text)
        return text.encode("latin-1" if self.binary else "utf-8", "replace")

    def write(self, data: bytes, path: Path) -> None:
        """Writes bytes where the command reads, and what lies beside them."""
        for name, content in self.beside.items():
            (path.parent / name).write_text(content, encoding="utf-8")
        # In place: some file systems take longer to give up blocks than a command takes for the file.
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(data)
            file.truncate()


def seed(name: str, suffix: str, text: str, words: str, **more: Any) -> Seed:
    return Seed(name, suffix, text, tuple(words.split()), **more)


@cache
def seeds() -> dict[str, Seed]:
    """One of every kind, by name."""
    made = [*_texts(), *_here(), *_rows(), *_of_tests(), *_recipes(), *_logs()]
    made += [Seed(*parts[:4], beside=parts[4]) for parts in trace_seeds.texts()]
    made += [
        Seed(name, suffix, data.decode("latin-1"), trace_seeds.REPLAY, binary=True)
        for name, suffix, data in trace_seeds.binaries()
    ]
    return {one.name: one for one in made}


def _texts() -> list[Seed]:
    tables = tomllib.loads(TEXTS.read_text(encoding="utf-8"))
    return [
        seed(
            name,
            table["suffix"],
            tables[table.get("like", name)]["text"],
            table["words"],
            beside=table.get("beside", {}),
        )
        for name, table in tables.items()
    ]


def _here() -> list[Seed]:
    return [
        seed(name, Path(path).suffix, (ROOT / path).read_text("utf-8"), words)
        for name, (path, words) in HERE.items()
    ]


def _rows() -> list[Seed]:
    """The header of a table, where it has one, and a few of its rows."""
    made = []
    for name, (table, file, most, part) in ROWS.items():
        lines = (folder_of(table) / file).read_text("utf-8").splitlines(keepends=True)
        head = lines[: 0 if file.endswith(".jsonl") else 1]
        chosen = [line for line in lines[len(head) :] if part in line][:most]
        words = f"validate {table} --jobs 1 --rows FILE{WHERE.get(table, '')}"
        made.append(seed(name, Path(file).suffix, "".join(head + chosen), words))
    return made


def _of_tests() -> list[Seed]:
    """Files that other tests read."""
    small = json.dumps(CONFIGS["smollm3-3b"] | {"num_hidden_layers": 2}, indent=0)
    megatron = LLAMA.replace("--num-layers 32", "--num-layers 2")
    choices = json.loads((folder_of("nccl-choice") / "logs.json").read_text("utf-8"))
    first = json.dumps(dict([*choices.items()][:1]), indent=0)
    judged = "validate nccl-choice --rows FILE"
    return [
        seed("nccl_xml", ".xml", HOST, IMPORT),
        seed("nvidia_smi", ".txt", SMI, IMPORT),
        seed("slurm", ".conf", TREE, IMPORT),
        seed("slurm_yaml", ".yaml", YAML, IMPORT),
        seed("ibnetdiscover", ".txt", IB, IMPORT),
        seed("infragraph", ".json", json.dumps(CLOS, indent=0), IMPORT),
        seed("hugging_face", ".json", small, MODEL),
        seed("megatron", ".sh", megatron, f"{MODEL} --set training.micro_batch=2"),
        seed("nccl_log", ".log", LOG, judged),
        seed("choices", ".json", first, judged),
        seed("doctor_debug", ".log", LOG, DOCTOR),
        seed(
            *("measured", ".zip", _measured(), "calibrate FILE -o OUT.toml --force"),
            members=True,
        ),
    ]


def _measured() -> str:
    """What `prestep measure` writes, cut short."""
    members = {"manifest.json": json.dumps(MANIFEST) + "\n"}
    for name, measured in rows().items():
        lines = (json.dumps(one) + "\n" for one in measured[:8])
        members[f"{name}.jsonl"] = "".join(lines)
    return "".join(f"== {name}\n{content}" for name, content in members.items())


def _zipped(text: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for member in text.split("== ")[1:]:
            name, _, content = member.partition("\n")
            data = content.encode("utf-8", "replace")
            file.writestr(name.replace("\0", "?") or "x", data)
    return made.getvalue()


def _recipes() -> list[Seed]:
    """A recipe of every format, run and imported."""
    made = []
    for name, example in EXAMPLES.items():
        options = "".join(f" --set {option}" for option in example.options)
        place = f"FILE --cluster dgx-h100{options} --lenient"
        text, suffix = text_with(example), f"_{example.name}"
        made += [
            seed(f"recipe_{name}_run", suffix, text, f"run {place} --json"),
            seed(
                *(f"recipe_{name}_import", suffix, text),
                f"import-recipe {place} -o OUT --force",
            ),
        ]
    return made


def _logs() -> list[Seed]:
    """What nccl-tests prints, and its report with -J, for the doctor and to calibrate with."""
    times = [(1 << n, 20.0 + 2**n / 5e4) for n in range(10, 28)]
    log = HEAD.replace("{program}", "all_reduce_perf")
    log += "".join(row(size, time, time) for size, time in times) + TAIL
    report = json.dumps(_report(times), indent=0)
    fit = "calibrate FILE -o OUT --force --cluster"
    return [
        seed("nccl_tests", ".log", log, f"{fit} rail-h100"),
        seed("doctor_tests", ".log", log, DOCTOR),
        seed("calibrate_json", ".json", report, f"{fit} dgx-h100"),
        seed("doctor_json", ".json", report, DOCTOR),
    ]


def _report(times: list[tuple[int, float]]) -> dict[str, Any]:
    devices = [
        {"rank": r, "hostname": "nodeA", "device_info": "NVIDIA H100 80GB HBM3"}
        for r in range(8)
    ]
    results = [
        {"size": size, "type": "float", "out_of_place": side, "in_place": side}
        for size, time in times
        for side in [{"time": time, "nwrong": 0.0}]
    ]
    return {
        "version": 2,
        "args": ["./build/all_gather_perf", "-g", "8"],
        "nccl_version": 22809,
        "env": ["HOME=/root", "NCCL_MAX_NCHANNELS=4"],
        "config": {"nthreads": 1, "ngpus": 1, "devices": devices},
        "results": results,
    }
