"""llm-analysis on the published rows: `python -m lab.bench.peer_llm_analysis` writes its step times beside them.

llm-analysis (Cheng Li, Apache-2.0, https://github.com/cli99/llm-analysis) is a closed-form calculator on PyPI. It gets
what our scenarios get: model, layout, batch, recomputation, the named GPU. What it has no words for (context
parallelism, experts on other ranks' tensors, uneven stages, fp8, GPUs without a file) is left out, and said.
"""

from __future__ import annotations

import argparse
import csv
import io
import logging
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lab.formats.published_setups import FOLDER
from lab.report.cells import PEER_STEPS
from lab.sets.published import Run, read, sort
from prestep.sim.errors import PrestepError
from prestep.sim.files import write_text
from prestep.sim.predict import load_fabric
from prestep.sim.spec.load import parse_scenario
from prestep.sim.spec.sections import Scenario
from prestep.workloads.models.model import ModelSpec, load_model

# Our GPUs -> its files; others it does not know.
GPUS = {
    "a100": "a100-sxm-80gb",
    "a100-40gb": "a100-sxm-40gb",
    "h100": "h100-sxm-80gb",
    "h100-pcie": "h100-pcie-80gb",
    "v100": "v100-sxm-32gb",
}
# Share of the peak that it takes arithmetic to reach: its default, and what its source says Megatron reaches.
EFFICIENCIES = {"default": None, "half": 0.5}
COLUMNS = ("id", *EFFICIENCIES, "reason")


def predictions(runs: Iterable[Run]) -> list[dict[str, str]]:
    """A row for each run: seconds of a step by efficiency, or why there are none.

    Raises
    ------
    PrestepError
        If llm-analysis is not installed.
    """
    try:
        import llm_analysis.analysis as peer
    except ImportError as error:
        raise PrestepError(
            f"llm-analysis is not installed ({error}): pip install llm-analysis, in a venv"
        ) from None
    logging.disable(logging.WARNING)
    return [{"id": run.id, **_predicted(peer, run)} for run in runs]


def _predicted(peer: Any, run: Run) -> dict[str, str]:
    try:
        scenario = parse_scenario(run.scenario, run.id)
        if reason := unsaid(scenario):
            return {"reason": reason}
        found = {
            name: _step(peer, scenario, share) for name, share in EFFICIENCIES.items()
        }
    except (
        PrestepError,
        AssertionError,
        ValueError,
        ZeroDivisionError,
        TypeError,
    ) as error:
        return {"reason": f"{type(error).__name__}: {str(error)[:80]}"}
    if not all(map(math.isfinite, found.values())):
        return {"reason": "no finite time"}
    return {name: f"{seconds:.6g}" for name, seconds in found.items()}


# Stages of ZeRO, and levels of recomputing, as llm-analysis counts them.
ZERO = {"fsdp": 3, "zero3": 3, "zero2": 2, "zero1": 1}
RECOMPUTE = {"none": 0, "selective": 1, "full": 2}


def unsaid(s: Scenario) -> str:
    """What of a scenario llm-analysis has no words for; "" for nothing."""
    if s.parallel.cp > 1:
        return "context parallelism"
    if s.training.precision == "fp8":
        return "fp8 training"
    if gpu_of(s) not in GPUS:
        return f"no file of a {gpu_of(s)}"
    return ""


def gpu_of(s: Scenario) -> str:
    return load_fabric(s).gpu_model.lower()


def _step(peer: Any, s: Scenario, efficiency: float | None) -> float:
    """Seconds of a step by llm-analysis."""
    # Installed for this comparison alone.
    from llm_analysis import config

    m, p, t = load_model(s.model, s.where), s.parallel, s.training
    analysis = peer.LLMAnalysis(
        _model(config, s, m),
        config.get_gpu_config_by_name(GPUS[gpu_of(s)]),
        config.DtypeConfig(),
        config.ParallelismConfig(
            tp_size=p.tp, pp_size=p.pp, dp_size=p.dp, ep_size=p.ep
        ),
        flops_efficiency=efficiency,
    )
    summary: Mapping[str, Any] = analysis.training(
        batch_size_per_gpu=t.micro_batch,
        global_batch_size=t.global_batch,
        seq_len=t.seq_len,
        total_num_tokens=1e12,
        ds_zero=peer.DSZeRO(ZERO.get(p.data_parallel or "", 0)),
        mlp_gated_linear_units=m.gated,
        activation_recomputation=peer.ActivationRecomputation(RECOMPUTE[t.recompute]),
    )
    return float(summary["latency_per_iter"])


def _model(config: Any, s: Scenario, m: ModelSpec) -> Any:
    """The model in the words of llm-analysis."""
    width = m.moe_ffn if m.experts else m.ffn
    return config.ModelConfig(
        name=s.where,
        num_layers=m.layers,
        n_head=m.heads,
        hidden_dim=m.hidden,
        vocab_size=m.vocab,
        max_seq_len=s.training.seq_len,
        num_key_value_heads=m.kv_heads,
        ffn_embed_dim=width,
        expansion_ratio=width / m.hidden,
        moe_num_experts=m.experts or 1,
        moe_top_k=m.experts_per_token or 1,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rows", type=Path, default=FOLDER / "rows.csv", help="Published rows (CSV)."
    )
    parser.add_argument("-o", "--output", type=Path, default=PEER_STEPS)
    options = parser.parse_args()
    try:
        made = predictions(sort(read(options.rows))[0])
    except PrestepError as error:
        sys.exit(str(error))
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(made)
    write_text(options.output, text.getvalue())
    print(
        f"wrote {options.output}: {sum('reason' not in row for row in made)} of {len(made)} rows",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
