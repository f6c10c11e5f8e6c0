"""`python -m lab.fit.attention_widths`: what wide heads take over heads of 128, and how well that is borne out.

Prints the lines of `[attention_widths]` in a Hopper's file, from one part of `lab/cases/attention-widths`, and
the errors of the model as it is on the rows of the other part.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from prestep.sim.costs import Gpu, load_gpu
from prestep.sim.costs.estimators.attention import OVER, REFERENCE, of_reference
from prestep.sim.graph.kernel import ATTENTION, LATENT, Kernel, named

ROWS = Path(__file__).parents[1] / "cases" / "attention-widths"
#: Heads of queries and of keys whose rows of one sample are fitted to.
FITTED = frozenset({(32, 8), (16, 16), (32, 32), (64, 64), (128, 128)})


@dataclass(frozen=True)
class Row:
    """Attention that was measured: forward and backward, s."""

    gpu: str
    query: int
    value: int
    batch: int
    tokens: int
    heads: int
    kv_heads: int
    seconds: tuple[float, float]

    @property
    def fitted(self) -> bool:
        """Whether ratios are taken from it."""
        grouped = (self.heads, self.kv_heads) in FITTED
        stated = bool(self.over) or self.query == REFERENCE
        return self.gpu == "h200" and self.batch == 1 and grouped and stated

    @property
    def over(self) -> str:
        """Its table; "" of heads that are no wider than 128."""
        if self.query != self.value:
            return LATENT
        return str(self.query) if str(self.query) in OVER else ""

    def kernel(self, kind: str) -> Kernel:
        """Forward or backward, as the models of steps launch it."""
        widths = {
            "attention_fwd": (self.query + self.value) // 2,
            "attention_bwd": round((3 * self.query + 2 * self.value) / 5),
        }
        shape = self.batch, self.heads, self.kv_heads, self.tokens, widths[kind]
        return named(kind, shape, layout=LATENT if self.over == LATENT else "")


def rows(folder: Path = ROWS) -> list[Row]:
    """All that was measured."""
    lines = [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return [
        Row(
            seconds=(
                1e-6 * line.pop("forward_us"),
                1e-6 * line.pop("backward_us"),
            ),
            **line,
        )
        for line in lines
    ]


def ratios(measured: Iterable[Row]) -> dict[tuple[str, str, int], float]:
    """By table, kind and tokens: geometric mean over the fitted rows, each over the same heads of 128.

    Latent attention has as many heads of keys as of queries; its rows are over the model's heads of 128, which
    reproduce the measured ones within a few per cent.
    """
    fitted = [row for row in measured if row.fitted]
    h200 = load_gpu("h200")
    plain = {
        (row.heads, row.kv_heads, row.tokens): row
        for row in fitted
        if row.query == row.value == REFERENCE
    }
    found: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for row in fitted:
        if not row.over:
            continue
        for index, kind in enumerate(ATTENTION):
            beside = plain.get((row.heads, row.kv_heads, row.tokens))
            shape = row.batch, row.heads, row.kv_heads, row.tokens, REFERENCE
            plainest = _under_limit(h200, named(kind, shape))
            least = beside.seconds[index] if beside else plainest
            found[row.over, kind, row.tokens].append(
                math.log(row.seconds[index] / least)
            )
    return {key: math.exp(fmean(logs)) for key, logs in sorted(found.items())}


def _under_limit(gpu: Gpu, kernel: Kernel) -> float:
    """Seconds of attention that runs back to back, as rows were measured: it draws the power limit.

    Ratios are of two such times, so wide heads are slowed as those of 128 are.
    """
    time, drawn = gpu.duration(kernel), gpu.beyond_limit(of_reference(kernel))
    return time * gpu.power.longer(drawn) if gpu.power and drawn else time


def lines(found: dict[tuple[str, str, int], float]) -> list[str]:
    """The table as a GPU's file has it."""
    tokens = sorted({key[2] for key in found})
    made = [f"tokens = {tokens}"]
    for over in OVER:
        kinds = (
            f"{kind} = [{', '.join(f'{found[over, kind, at]:.2f}' for at in tokens)}]"
            for kind in ATTENTION
        )
        made.append(f"{over} = {{ {', '.join(kinds)} }}")
    return made


def errors(measured: Iterable[Row]) -> dict[tuple[str, str, str], list[float]]:
    """Predicted over measured less one, of rows that nothing was fitted to: by GPU, width and kind."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in measured:
        if row.fitted:
            continue
        gpu = load_gpu(row.gpu)
        name = f"{row.query}" if row.query == row.value else f"{row.query}/{row.value}"
        for index, kind in enumerate(ATTENTION):
            predicted = _under_limit(gpu, row.kernel(kind))
            found[row.gpu, name, kind].append(predicted / row.seconds[index] - 1)
    return found


def main() -> None:
    """Prints both."""
    measured = rows()
    print(*lines(ratios(measured)), sep="\n")
    print("\nJudged rows (nothing was fitted to them):")
    for (gpu, name, kind), off in sorted(errors(measured).items()):
        absolute = fmean(map(abs, off))
        worst = max(off, key=abs)
        print(
            f"{gpu} {name:>8} {kind}: {len(off)} rows, {absolute:.1%}, bias {fmean(off):+.1%}, worst {worst:+.1%}"
        )


if __name__ == "__main__":
    main()
