"""Predict a collective over a range of sizes, in the columns of nccl-tests."""

from __future__ import annotations

from typing import Any

import click

from prestep.sim.commands import _shared as shared
from prestep.sim.extras import lazily

with lazily():
    from prestep.sim.exchanges import report

GROUP = "Predict"


@click.command(
    help=__doc__,
    epilog="\b\n"
    "Examples:\n"
    "  prestep collective --cluster dgx-h100 --min-bytes 1M --max-bytes 1G\n"
    "  prestep collective --cluster dgx-h100 --op all_gather --gpus 0-3 --explain\n"
    "  prestep collective --cluster aws-p5en --hosts 4 --op dispatch --library pplx\n",
)
@click.option(
    "--cluster", required=True, metavar="NAME|FILE", help="`prestep list clusters`."
)
@shared.scaled
@click.option(
    "--op",
    default="all_reduce",
    show_default=True,
    help="Operation; init: making a communicator; dispatch, combine: experts' tokens.",
)
@click.option(
    "--backend",
    default=None,
    help="Who runs it: nccl (the default), gloo (CPU, TCP), nvshmem (puts), one_shot or two_shot (MSCCL++, vLLM).",
)
@click.option(
    "--ranks",
    type=click.IntRange(2),
    help="Ranks, one per GPU; default: all of the cluster.",
)
@click.option(
    "--gpus",
    default="",
    metavar="LIST",
    help="GPUs by name or number instead: 0,2,4-7; the first is root.",
)
@click.option(
    "--min-bytes",
    default="8",
    show_default=True,
    metavar="SIZE",
    help="Smallest size: 8, 1M, 4 MiB.",
)
@click.option(
    "--max-bytes", default="4G", show_default=True, metavar="SIZE", help="Largest size."
)
@shared.file_option(
    "--counts",
    "counts",
    text="CSV of uneven messages: what each rank of an all_to_all sends to each, a line a sender; one line: to each.",
)
@shared.options(
    {
        "--library": "Of tokens: deepep (the default), deepep-ll, deepep-v2, hybridep, nccl, pplx, uccl, uccl-ll.",
        "--tokens": "Tokens of a rank, or several numbers: 128,4096 (the default).",
        "--dtype": "Of tokens: fp8 (dispatch) or bf16 (combine).",
    }
)
@shared.options(
    {
        "--hidden": "Elements of a token; default: 7168.",
        "--topk": "Experts of a token; default: 8.",
        "--experts": "Experts of all ranks; default: 256.",
        "--sms": "SMs of the library's kernel; default: 20.",
    },
    type=click.IntRange(1),
)
@click.option("--algo", help="Force the algorithm, as NCCL_ALGO.")
@click.option("--proto", help="Force the protocol, as NCCL_PROTO.")
@click.option(
    "--channels", type=click.IntRange(1), help="Force the number of channels."
)
@shared.file_option(
    "--nccl-constants",
    "constants",
    text="NCCL's constants, as `prestep calibrate` writes them.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Say what bounds each size, and which rings and trees there are.",
)
@shared.changes
@shared.as_json
@shared.explained
def command(explain: bool, json_: bool, **choices: Any) -> None:
    shape = {key: choices.pop(key) for key in report.SHAPE}
    prediction = report.collective(explain=explain, exchange=shape, **choices)
    shared.show_result(json_, prediction.to_json, prediction.render)
