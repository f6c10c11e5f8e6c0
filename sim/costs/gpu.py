"""A GPU as the simulator sees it: how long a kernel runs on it, and what that number rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prestep.sim.costs import aten, gemm, scans, sustained, terms
from prestep.sim.costs.attention import is_fp8, widened
from prestep.sim.costs.attention_widths import Stand
from prestep.sim.costs.facts import GpuFacts
from prestep.sim.costs.gpu_files import HARDWARE, aten_of, facts_of, names, rows_of
from prestep.sim.costs.gpu_times import GpuTimes
from prestep.sim.costs.kinds import ATTENTIONS, STREAM_PASSES, check, work
from prestep.sim.costs.tables import NEAR, REACH, Curve, Row
from prestep.sim.graph.kernel import STATED, Kernel

FORWARD = "forward products"  # borrowed by gradients


class Gpu(GpuTimes):
    """One GPU model: its limits, the times of kernels on it, and the evidence for each of them."""

    def evidence(self, kernel: Kernel) -> str:
        """What a time rests on: "measured" (this shape), "fitted" (this kind), "datasheet", "guess"; under load too."""
        known = self._evidence.get(kernel)
        if known is None:
            known = self._evidence[kernel] = self._under_load(kernel)
        return known

    def _under_load(self, kernel: Kernel) -> str:
        if (reading := self.reading(kernel)) is not None:
            grade = self.evidence(reading.main)
            return "guess" if reading.beside and grade != "guess" else grade
        if is_fp8(kernel):
            return self._grade_in_fp8(kernel)
        if self.past(kernel) > math.log2(REACH):
            return "guess"
        grade, load_key = (
            self._grade(kernel),
            sustained.load_key(self.facts, self.roofline, kernel),
        )
        if load_key in self.facts.guessed_load:
            return "guess"
        return "fitted" if load_key and grade == "measured" else grade

    def _grade_in_fp8(self, kernel: Kernel) -> str:
        """Of attention in fp8: no better than what it follows and than a ratio; where nobody measured that, a guess."""
        known = self.facts.attention_fp8 is not None
        grade = self.evidence(widened(kernel))
        return (
            "fitted" if known and grade == "measured" else grade if known else "guess"
        )

    def _grade(self, kernel: Kernel) -> str:
        if kernel.kind == STATED:
            return "measured"
        check(kernel)
        if kernel.kind in scans.KINDS:
            return scans.grade(kernel, self)
        if kernel.kind == "bmm":
            return "guess"
        if (wide := self.stand(kernel)) is not None:
            return self._grade_of_wide(wide)
        if (read := self._surface(kernel)) is not None:
            return _grade_of(kernel, *read)
        if kernel.kind == "adamw" and self.facts.adamw is not None:
            return "fitted"
        if kernel.kind in self.facts.efficiency:
            return "fitted"
        if self._by_products(kernel):
            return "measured" if self.libraries.measured(kernel) else "fitted"
        model = self.tables.model(terms.group(kernel))
        if (
            model is None
            and self._own_tiles(kernel)
            and gemm.of_dtype(self.tiles, kernel.dtype) is not None
        ):
            return "fitted"
        if model is None:
            return self._grade_without_table(kernel)
        if borrowed := self._borrowed(kernel):
            return (
                "fitted" if borrowed == FORWARD else "guess"
            )  # the tile model is the same for every layout
        if kernel.kind in gemm.KINDS and kernel.dtype in self.facts.beyond_alike:
            return "fitted"
        at_row = (
            model.measured(work(kernel)[1])
            if isinstance(model, Curve)
            else model.measured(kernel)
        )
        return "measured" if at_row else "fitted"

    def _grade_of_wide(self, wide: Stand) -> str:
        """Of attention with wide heads: no better than a ratio; a guess where nobody measured that."""
        grade = self._grade(wide.kernel)
        if self.widths is None:
            return "guess"
        return "fitted" if grade == "measured" else grade

    def _grade_without_table(self, kernel: Kernel) -> str:
        """Of a kernel whose kind has no table here: another GPU's time, or what datasheets say."""
        if self.like is not None:
            others = (
                kernel.kind == "attention_bwd"
                and kernel.kind in self.facts.units
                and self.facts.attention_over is None
            )
            judged = (kernel.kind, kernel.dtype) in self.facts.borne_out
            known = judged or self.measured_ratio(self.like, kernel)
            return "fitted" if known and not others else "guess"
        products = kernel.kind in ("gemm", "gemm_bias")
        stated = products or kernel.kind in STREAM_PASSES
        return "datasheet" if stated else "guess"

    def stands_on(self, kernel: Kernel) -> str:
        """What replaces a measurement of such a kernel here, in words; "" where its own table reaches it."""
        kernel = self.main(kernel)
        if kernel.kind == STATED:
            return ""
        check(kernel)
        if is_fp8(kernel):
            return (
                self.stands_on(widened(kernel))
                or "that in 16 bits, by a library's times of both"
            )
        if kernel.kind in scans.KINDS:
            return self._scan_stands_on(kernel)
        if kernel.kind == "bmm":
            return "one tall GEMM in place of a batch"
        if (wide := self.stand(kernel)) is not None:
            in_proportion = "heads of 128, as their products are wide"
            return self.stands_on(wide.kernel) or (
                in_proportion if self.widths is None else "heads of 128, by ratios"
            )
        if (read := self._surface(kernel)) is not None:
            return _in_place(kernel, *read)
        if kernel.kind == "adamw" and self.facts.adamw is not None:
            return ""
        if kernel.kind in self.facts.efficiency:
            return "no table"
        if self._by_products(kernel):
            beyond = self.libraries.past(kernel) > 0
            return "extrapolation of its table" if beyond else ""
        model = self.tables.model(terms.group(kernel))
        if model is None and self._own_tiles(kernel):
            return (
                ""
                if gemm.of_dtype(self.tiles, kernel.dtype) is not None
                else "no table"
            )
        if model is None:
            return "no table" if self.like is None else self._in_place_of(kernel)
        if borrowed := self._borrowed(kernel):
            return f"the table of {borrowed}"
        reached = (
            model.reaches(work(kernel)[1])
            if isinstance(model, Curve)
            else model.reaches(kernel)
        )
        return "" if reached else "extrapolation of its table"

    def _scan_stands_on(self, kernel: Kernel) -> str:
        """Of a scan: measured on one GPU, which others follow."""
        if scans.past(kernel) > 0:
            return "extrapolation of its table"
        own = scans.grade(kernel, self) != "guess"
        return "" if own else f"the {scans.MEASURED_ON}'s table"

    def _in_place_of(self, kernel: Kernel) -> str:
        """Whose table stands in, and whether times of both GPUs say how they differ."""
        assert self.like is not None
        both = self.measured_ratio(self.like, kernel) is not None
        how = ", by an operation measured on both" if both else ""
        return f"the {self.like.name}'s table{how}"

    def past(self, kernel: Kernel) -> float:
        """Octaves by which a kernel lies past the sizes in the table it is read from; 0 where that reaches it."""
        kernel = self.main(kernel)
        instead = self.stands_on(kernel)
        like = self.like
        if isinstance(like, Gpu) and instead.startswith(f"the {like.name}'s"):
            # What a lent table is continued to, near its sizes, is in the width of lent times.
            lent = like.past(kernel)
            return lent if lent > math.log2(REACH) else 0.0
        if not instead.startswith("extrapolation"):
            return 0.0
        if kernel.kind in scans.KINDS:
            return scans.past(kernel)
        if is_fp8(kernel):
            return self.past(widened(kernel))
        if (read := self._surface(kernel)) is not None:
            return read[0].past(kernel)
        if self._by_products(kernel):
            return self.libraries.past(kernel)
        model = self.tables.model(terms.group(kernel))
        if model is None:
            return 0.0
        return (
            model.past(work(kernel)[1])
            if isinstance(model, Curve)
            else model.past(kernel)
        )

    def _borrowed(self, kernel: Kernel) -> str:
        """The kind whose table a kernel without one is read from, or "contiguous" for another layout's; else ""."""
        kind, layout, _ = group = terms.group(kernel)
        if kernel.kind in terms.BORROWED:
            return kind
        if (
            kind == "gemm"
            and layout not in ("", "nt")
            and all(row.kernel.layout == "nt" for row in self.tables.rows(group))
        ):
            return FORWARD
        return (
            "contiguous " + kind
            if kind in STREAM_PASSES and layout and not self.tables.rows(group)
            else ""
        )

    def table_of(self, kernel: Kernel) -> str:
        """Whose times a kernel's are: "own", "library SOURCE", "borrowed from GPU", or "limits" of the datasheet."""
        kernel = self.main(kernel)
        if is_fp8(kernel):
            return self.table_of(widened(kernel))
        if source := self.library_of(kernel):
            return f"library {source}"
        instead = self.stands_on(kernel)
        if self.like is not None and instead.startswith(f"the {self.like.name}'s"):
            return f"borrowed from {self.like.name}"
        return "limits" if instead == "no table" else "own"

    def library_of(self, kernel: Kernel) -> str:
        """The library ("trtllm/1.3.0rc20") whose table on this GPU says a kernel's time, or how it differs; else ""."""
        kernel = self.main(kernel)
        over = self.facts.attention_over
        if over is not None and kernel.kind in ATTENTIONS:
            return over.source
        stack = self.libraries.stack(kernel)
        if stack is None or (kernel.kind in ATTENTIONS and not self._lent(kernel)):
            return ""
        return stack.source

    def _lent(self, kernel: Kernel) -> bool:
        """Whether another GPU's time of a kernel is taken, by an operation measured on both."""
        own = self.tables.model(terms.group(kernel)) is not None
        like = self.like
        return not own and like is not None and bool(self.measured_ratio(like, kernel))


def _grade_of(kernel: Kernel, surface: aten.Surface, own: bool) -> str:
    """Evidence of an ATen operation: its own table's, else a guess."""
    if not own:
        return "guess"
    return "measured" if surface.measured(kernel) else "fitted"


def _in_place(kernel: Kernel, surface: aten.Surface, own: bool) -> str:
    """What replaces a measurement of an ATen operation; "" where its own table reaches it."""
    if not own:
        return "the table of operations like it"
    return "extrapolation of its table" if surface.past(kernel) > NEAR else ""


def load(name: str, folder: Path | None = None) -> Gpu:
    """The GPU `name` from `folder`: `<name>.toml` with facts and, where measured, `-fitted.toml` and `-kernels.csv`.

    What others published of it is in `-published.toml` and `-published.csv`.

    Raises
    ------
    InputError
        If there is no such GPU.
    """
    facts, rows, like = parts(name, folder)
    return Gpu(name.lower(), facts, rows, like, aten_of(name, folder))


def parts(
    name: str, folder: Path | None = None, over: Mapping[str, Any] | None = None
) -> tuple[GpuFacts, list[Row], Gpu | None]:
    """Facts of a GPU, its rows, and the one that lends it what it lacks; `over` and raises as `facts_of`."""
    facts = facts_of(name, folder, over)
    like = load(facts.like, folder) if facts.like else None
    return facts, rows_of(name, folder), like


__all__ = ["HARDWARE", "Gpu", "load", "names", "parts"]
