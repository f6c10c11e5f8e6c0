"""Files made to do harm: each ends with an exit code and a message, soon."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from prestep.sim import files
from prestep.sim.errors import InputError
from tests.fuzz.running import JUDGES, ended, outcome
from tests.fuzz.seeds import seeds

SEEDS = {
    name: seed
    for name, seed in seeds().items()
    if not (name.startswith("recipe_") and name.endswith("_run"))
}
SCENARIO = SEEDS["scenario"].text
LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "aaaaaaaaaa">'
    + "".join(
        f'<!ENTITY {chr(98 + i)} "{("&" + chr(97 + i) + ";") * 10}">' for i in range(9)
    )
    + ']><system version="1"><cpu numaid="&j;"/></system>'
)
HOSTILE = {
    "entities": ("nccl_xml", LAUGHS),
    "external entity": (
        "nccl_xml",
        '<!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]><system>&x;</system>',
    ),
    "long comment": ("scenario", f"#{'x' * 1_000_000}\n{SCENARIO}"),
    "deep XML": ("nccl_xml", "<system>" + "<pci>" * 200_000),
    "deep scenario": ("scenario", "a = " + "[" * 100_000),
    "dotted key": ("scenario", "a" + ".a" * 100_000 + " = 1"),
    "deep cluster": ("family", "a = " + "[" * 100_000),
    "deep rows": ("steps", "[" * 100_000),
    "deep collectives": ("collectives", "[" * 100_000),
    "deep trace": ("trace", "[" * 100_000),
    "deep arguments": (
        "trace",
        '{"traceEvents":[{"args":' + "[" * 100_000 + "]" * 100_000 + "}]}",
    ),
    "deep YAML": ("slurm_yaml", "- topology: x\n  tree: " + "[" * 5_000),
    "digits": ("collectives", "9" * 10_000),
    "a number of digits": (
        "scenario",
        SCENARIO.replace("slow_factor = 1.5", f"slow_factor = {10**400}"),
    ),
    "ranks": (
        "doctor_tests",
        "# nThread 1 nGpus 1\n"
        "#  Rank 999999999999 Group 0 Pid 1 on a device 0 [0000:0f:00] NVIDIA H100\n",
    ),
    "sizes that are a table": (
        "steps",
        '{"id": "a", "world": 1, "case": {}, "step_s_by_rank": {"0": [1.0]}, '
        '"peak_reserved": {}, "env": [1], "peak_alloc_by_rank": [2]}',
    ),
    "an endless step": (
        "steps",
        '{"id": "a", "world": 1, "case": {}, "step_s_by_rank": {"0": [1e999]}}',
    ),
    "sizes that are none": (
        "rows_kernels",
        "system,framework,version,kernel_source,gemm_dtype,m,n,k,latency\n"
        "h200_sxm,vLLM,0.14.0,cublas,bfloat16,x,4096,4096,0.02\n",
    ),
    "a clock that is a text": (
        "rows_energy",
        SEEDS["rows_energy"].text.replace(
            '"sm_clock_mhz":', '"sm_clock_mhz": "x", "y":'
        ),
    ),
    "marks that are a list": (
        "saves",
        SEEDS["saves"].text.replace(
            '"checkpoint_by_rank":', '"checkpoint_by_rank": [1], "y":'
        ),
    ),
    "a stage that is a list": (
        "recipe_deepspeed_import",
        '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": [1]}}',
    ),
    "layers": ("scenario", SCENARIO.replace("layers = 2", "layers = 100000000")),
    "accumulation": (
        "scenario",
        SCENARIO.replace("grad_accumulation = 2", "grad_accumulation = 99999999"),
    ),
    "infinity": (
        "scenario",
        SCENARIO.replace("slow_factor = 1.5", "slow_factor = inf"),
    ),
    "huge factor": (
        "scenario",
        SCENARIO.replace("slow_factor = 1.5", "slow_factor = 1e308"),
    ),
    "edges that are none": (
        "infragraph",
        "devices: [{name: a, edges: 1.5}]\ninstances: [{name: i, device: a}]\n",
    ),
    "a name that is a list": (
        "infragraph",
        "devices: [{name: [a]}]\ninstances: [{name: i, device: [a]}]\n",
    ),
    "components that are none": (
        "infragraph",
        "devices: [{name: a, components: [7]}]\ninstances: [{name: i, device: a}]\n",
    ),
    "settings that are lists": (
        "choices",
        '{"x": {"cluster": "h200-host-4", "version": "2.28.9", "choices": {}, "table": {}, "nccl": {"max_ctas": [1]}}}',
    ),
    "line ends of old": ("routed_csv", "layer,expert,tokens\r0,0,1\r0,1,2\r"),
    "a cell beyond the limit of csv": (
        "routed_csv",
        "layer,expert,tokens\n0,0," + "1" * 200_000 + "\n",
    ),
    "a framework without its version": (
        "rows_kernels",
        "system,framework,kernel_source,gemm_dtype,m,n,k,latency\n"
        "h200_sxm,vLLM,cublas,bfloat16,64,4096,4096,0.02\n",
    ),
    "a setting that is no number": (
        "steps",
        SEEDS["steps"].text.replace(
            '"env": {}', '"env": {"NCCL_MAX_NCHANNELS": "1e-300x"}'
        ),
    ),
    "half of a pair of code units": (
        "steps",
        SEEDS["steps"].text.replace('"id": "', '"id": "\\ud83d', 1),
    ),
    "hosts": ("slurm", "SwitchName=s Nodes=n[1-99999999999999999999]\n"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_by_rule(name: str, tmp_path: Path) -> None:
    """Entities, depth, counts and numbers beyond any real file: a message, not a crash and not a wait."""
    kind, text = HOSTILE[name]
    path = tmp_path / f"x{SEEDS[kind].suffix}"
    path.write_text(text)
    assert outcome(SEEDS[kind], path, tmp_path / "out.json") == ""


@pytest.mark.parametrize(
    ("kind", "suffix"), [("trace", ".json.gz"), ("nccl_xml", ".xml.gz")]
)
def test_a_gzip_bomb_is_refused(kind: str, suffix: str, tmp_path: Path) -> None:
    """A hundred kilobytes that unpack to a hundred megabytes are no recording."""
    path = tmp_path / f"x{suffix}"
    path.write_bytes(gzip.compress(b" " * (100 << 20), 6))
    assert outcome(SEEDS[kind], path, tmp_path / "out.json") == ""


@pytest.mark.parametrize("name", SEEDS)
def test_files_that_are_none(name: str, tmp_path: Path) -> None:
    """Nothing, zeros, bytes that are no text, another kind of value."""
    path = tmp_path / f"x{SEEDS[name].suffix}"
    for data in (b"", b"\0" * 1000, b"\xff\xfe\x00" * 1000, b"null", b"9" * 10_000):
        path.write_bytes(data)
        assert outcome(SEEDS[name], path, tmp_path / "out.json") == ""


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    """An error half way: the old text stays, and nothing else is left in the folder."""
    path = tmp_path / "kept.txt"
    files.write_text(path, "old")
    with pytest.raises(RuntimeError), files.replacing(path) as beside:
        beside.write_text("half of the n")
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_to_is_a_mistake(tmp_path: Path) -> None:
    """A folder, and a folder that is not there: the message names it."""
    for path in (tmp_path, tmp_path / "no" / "x.txt"):
        with pytest.raises(InputError, match=str(tmp_path)):
            files.write_text(path, "x")


@pytest.mark.parametrize("name", SEEDS)
def test_a_file_that_is_whole_is_read(name: str, tmp_path: Path) -> None:
    """What is damaged is good before: else every damaged file is refused for another reason."""
    path = tmp_path / f"x{SEEDS[name].suffix}"
    SEEDS[name].write(SEEDS[name].data, path)
    assert outcome(SEEDS[name], path, tmp_path / "out.json") == ""
    assert ended.code in ({0, 1} if SEEDS[name].words[0] in JUDGES else {0})
