"""Rows of MLPerf's Llama-2-70B LoRA results as rows of published steps (columns as in cases/lora/rows.csv).

A row is a system: what its logs say, and the variables of the script that it ran as far as the script is known. A step
takes the logged median, or the batch over the logged throughput. What the script leaves open is resolved where only one
layout is possible: all submissions have microbatches of one sample, so the ranks of a replica are GPUs times gradient
accumulation over the batch. Where scripts of that size split them in more than one way, the row is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.formats.csv_rows import csv_rows
from lab.formats.published_columns import count, positive
from prestep.sim.errors import InputError, Mistake

NEEDED = ("mlperf", "org", "system", "accelerator", "gpus", "global_batch")
#: GPUs by what a row calls its accelerator; the longer names first.
GPUS = ("GB300", "GB200", "GH200", "B300", "B200", "H200", "H100", "A100", "L40S")
#: Layout of a script by its name: hosts, GPUs, microbatches, and axes.
NAMED = r"config_\S*?(\d+)x(\d+)x(\d+)xtp(\d+)pp(\d+)cp(\d+)\S*?\.sh"
ADDRESS = "https://github.com/mlcommons/training_results_{mlperf}/tree/main/{org}/results/{system}/llama2_70b_lora"
PREFIX = "cfg_"
#: The model, as columns of a published row.
MODEL = {
    "model": "Llama-2-70B LoRA",
    "layers": "80",
    "hidden": "8192",
    "heads": "64",
    "kv_heads": "8",
    "ffn": "28672",
    "vocab": "32000",
    "seq_len": "8192",
    "micro_batch": "1",
}


@dataclass(frozen=True)
class Layout:
    """Ranks of a replica by axis."""

    tp: int
    pp: int
    cp: int

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.tp * self.pp * self.cp


def read(path: Path) -> tuple[list[dict[str, str]], list[tuple[str, str]]]:
    """Rows of a file, as `published` has them.

    Raises
    ------
    InputError
        If it cannot be read, or lacks rows or columns.
    """
    return published(csv_rows(path, NEEDED, "a CSV file of LoRA results"))


def published(
    rows: Sequence[Mapping[str, str]],
) -> tuple[list[dict[str, str]], list[tuple[str, str]]]:
    """Rows in the columns of published steps, and (row, reason) of those that say too little."""
    made, left_out = [], []
    for said in rows:
        row = {**said, "id": name_of(said)}
        try:
            made.append(_row(row))
        except InputError as error:
            text = "; ".join(str(mistake) for mistake in error.mistakes)
            left_out.append((name_of(row), text))
    return made, left_out


def name_of(row: Mapping[str, str]) -> str:
    """Round, submitter and system."""
    return f"{row['mlperf']}/{row['org']}/{row['system']}"


def _row(row: Mapping[str, str]) -> dict[str, str]:
    """A row as a published one."""
    name, step = row["id"], _step(row)
    layout = layout_of(row)
    return {
        **MODEL,
        "id": name,
        "source": f"MLPerf Training {row['mlperf']} llama2_70b_lora {row['org']}",
        "url_or_repo": ADDRESS.format(**row),
        "hardware": _gpu(row),
        "gpus": row["gpus"],
        "nodes": row.get("nodes", ""),
        "tp": str(layout.tp),
        "pp": str(layout.pp),
        "cp": str(layout.cp),
        "dp": str(count(row, "gpus", 1) // layout.ranks),
        "global_batch": str(count(row, "global_batch", 0)),
        "sequence_parallel": str(layout.tp > 1).lower(),
        "metric_name": "step_time",
        "metric_value": f"{step:.9g}",
        "unit": "s",
        "notes": _notes(row),
    }


def _step(row: Mapping[str, str]) -> float:
    """Seconds of a step: logged, or the batch over the logged samples a second."""
    if row.get("step_s_median", "").strip():
        return positive(row, "step_s_median", row["id"], "seconds")
    for column in ("throughput_median", "block_samples_per_s"):
        if row.get(column, "").strip():
            return count(row, "global_batch", 0) / positive(
                row, column, row["id"], "samples/s"
            )
    expected = "step_s_median, throughput_median or block_samples_per_s"
    raise InputError(Mistake(name_of(row), "", "no time of a step", expected))


def _gpu(row: Mapping[str, str]) -> str:
    """The GPU's name in an accelerator's."""
    text = row["accelerator"]
    known = next((gpu for gpu in GPUS if gpu in text), None)
    return known or text


def _notes(row: Mapping[str, str]) -> str:
    """The script and its variables in the form of notes, as `mlperf_scripts` reads them."""
    script = row.get("config", "").strip()
    stated = [
        f"{key.removeprefix(PREFIX)}={value.strip().rstrip(';')}"
        for key, value in row.items()
        if key and key.startswith(PREFIX) and re.fullmatch(r"[\w.]+;?", value.strip())
    ]
    return "; ".join([f"config {script}", *stated]) if script else ""


def layout_of(row: Mapping[str, str]) -> Layout:
    """The layout of a row: its script's, or the only one possible.

    Raises
    ------
    InputError
        Where script and log disagree, or several layouts are possible.
    """
    ranks = _ranks_of_replica(row)
    told = _told(row)
    if told is not None:
        if told.ranks != ranks:
            found = f"{told.ranks} ranks of a replica in {row['config']}, {ranks} by batch and accumulation in the log"
            raise InputError(
                Mistake(name_of(row), "config", found, "one layout in both")
            )
        return told
    possible = _possible(row, ranks)
    if len(possible) == 1:
        return possible.pop()
    several = [
        f"tp {one.tp} pp {one.pp} cp {one.cp}" for one in sorted(possible, key=str)
    ]
    found = (
        f"{ranks} ranks of a replica: {', '.join(several) or 'no script of that size'}"
    )
    raise InputError(
        Mistake(name_of(row), "config", found, "a script, or one possible layout")
    )


def _ranks_of_replica(row: Mapping[str, str]) -> int:
    """GPUs of a replica: microbatches are of one sample, so a batch is replicas times accumulation."""
    gpus, batch = count(row, "gpus", 1), count(row, "global_batch", 0)
    accumulated = count(row, "grad_accum", 1)
    replicas = batch / accumulated
    if replicas != int(replicas) or gpus % int(replicas):
        found = f"{gpus} GPUs, batch {batch}, accumulation {accumulated}"
        raise InputError(Mistake(name_of(row), "global_batch", found, "whole replicas"))
    return gpus // int(replicas)


def _told(row: Mapping[str, str]) -> Layout | None:
    """The layout of a row's script: its variables, else the script's name."""
    if not row.get("config", "").strip():
        return None
    if all(row.get(f"{PREFIX}{axis}", "").strip() for axis in ("TP", "PP", "CP")):
        axes = (count(row, f"{PREFIX}{axis}", 1) for axis in ("TP", "PP", "CP"))
        return Layout(*axes)
    named = re.search(NAMED, row["config"])
    if named is not None:
        return Layout(*map(int, named.groups()[3:]))
    return None


def _possible(row: Mapping[str, str], ranks: int) -> set[Layout]:
    """Layouts of so many ranks: of scripts that may have been a row's; of a single rank there is one.

    A script for these GPUs whose name does not say its layout may be any: then none is sure.
    """
    if ranks == 1:
        return {Layout(1, 1, 1)}
    hosts, per_host = count(row, "nodes", 1), count(row, "per_node", 1)
    layouts: set[Layout] = set()
    for script in re.findall(r"config_\S+\.sh", row.get("config_how", "")):
        named = re.fullmatch(NAMED, script)
        if named is None and not _of_others(script, _gpu(row)):
            return set()
        if named is not None:
            size, axes = named.groups()[:2], map(int, named.groups()[3:])
            if size == (str(hosts), str(per_host)):
                layouts.add(Layout(*axes))
    return {layout for layout in layouts if layout.ranks == ranks}


def _of_others(script: str, gpu: str) -> bool:
    """Whether a script's name has another GPU than a row's."""
    return gpu not in script and any(name in script for name in (*GPUS, "MI3"))
