"""Turns a measurement into a cluster file with its own kernel times, NCCL constants, host factor and link rates.

Files beside each other: NAME.toml (the cluster, over a bundled one), NAME-gpu.toml with NAME-gpu.parquet (kernels),
NAME-nccl.toml. Every part holds a third or more of its rows out of a trial fit and tells both errors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prestep.sim import files
from prestep.sim.collectives import machine
from prestep.sim.costs import measured as measured_gpu
from prestep.sim.costs.corrected import between
from prestep.sim.costs.gpu import names as gpu_names
from prestep.sim.costs.measured import gpu_of, load_file
from prestep.sim.costs.measured_rows import write_rows
from prestep.sim.errors import InputError, PrestepError
from prestep.topologies import load_cluster
from prestep.validation.fit import machine_gpu, machine_steps
from prestep.validation.fit.bootstrap import Estimate, of_ratios
from prestep.validation.fit.machine_file import Fits, Paths, base_of, named, render
from prestep.validation.fit.machine_steps import Step
from prestep.validation.fit.measurement import Measured, opened
from prestep.validation.formats import collective_reader
from prestep.validation.sets import predict_collective

# The bundled cluster under a machine with these GPUs, unless --cluster says another.
USUAL = {
    "h200": "dgx-h200",
    "h100": "dgx-h100",
    "a100": "dgx-a100",
    "b200": "dgx-b200",
    "gb200": "gb200-nvl72",
    "gh200": "gh200",
}
# How drivers name GPUs that prestep has: the longest that fits counts.
NAMED = {
    "A100-SXM4-40GB": "a100-40gb",
    "A100-PCIE": "a100-pcie",
    "A100 80GB PCIe": "a100-pcie",
    "H100 PCIe": "h100-pcie",
}
LEAST_ROWS = 3  # of an algorithm and protocol below which nothing is said
NcclFit = Callable[[Path, Path, str], str]


def calibrate(
    path: Path,
    output: Path,
    cluster: str,
    force: bool,
    fit_nccl: NcclFit,
    gpu_file: Path | None = None,
) -> str:
    """Fits everything that a measurement allows and writes the files; returns a report for people.

    Parameters
    ----------
    cluster
        The cluster under it: a name or file; "": the usual one of its GPUs.
    fit_nccl
        Fits NCCL's constants: (rows, output, cluster) -> words.
    gpu_file
        Facts of a GPU that prestep does not have.

    Raises
    ------
    InputError
        If the measurement is none, a file is in the way, or the machine's GPUs are unknown and no cluster is given.
    """
    paths = Paths.of(output)
    paths.refuse(force)
    with opened(path) as measured:
        base = cluster or usual_cluster(measured)
        if gpu_file is not None:
            base = _with_gpu(base, gpu_file, paths.base)
        calibration = _Calibration(measured, base, load_cluster(base), paths)
        notes = calibration.run(fit_nccl)
    return "\n".join([*notes, "", *_written(paths)])


@dataclass(frozen=True)
class _Calibration:
    """A measurement that becomes files: over the cluster of the name `base`, which is `below`."""

    measured: Measured
    base: str
    below: Any
    paths: Paths

    def run(self, fit_nccl: NcclFit) -> list[str]:
        """Fits every part and writes its file; returns the lines of the report."""
        measured, output = self.measured, self.paths.cluster
        steps, reasons = machine_steps.steps_of(measured, self.base)
        fits = self._fits(steps)
        if fits.table is not None and gpu_of(self.below).like is not None:
            # Another GPU lends the known one its times: which steps the GPU decides, own kernels tell.
            self._write(fits)
            steps = machine_steps.with_kernels(steps, output)
            fits = self._fits(steps)
        fits = self._levelled(fits, steps)
        gpus = f"{measured.world} x {measured.model}, {measured.when}"
        notes = [f"{measured.name}: {gpus}, over the cluster {self.base}"]
        notes += self._write_kernels(fits)
        notes += ["", "# host", fits.host_note]
        _refuse_nothing(fits, measured)
        notes += ["", "# collectives", self._nccl(fit_nccl)]
        notes += ["", "# links and disks", *fits.link_notes]
        self._write_cluster(fits)
        load_cluster(str(output))  # a file that cannot be read back is no result
        notes += self._how_sure()
        return [*notes, *self._judged(fits, steps, reasons)]

    def _judged(
        self, fits: Fits, steps: Sequence[Step], reasons: list[str]
    ) -> list[str]:
        """The steps on the calibrated cluster, without its kernels if those of the known GPU predict steps better."""
        notes, output = list[str](), self.paths.cluster
        judged, gpu = machine_steps.judge(steps, output), gpu_of(self.below)
        likelier = machine_steps.better_before(judged, between(gpu))
        if fits.table is not None and likelier > 1:
            for path in (self.paths.gpu, self.paths.table):
                path.unlink()
            self._write_cluster(replace(fits, table=None))
            notes.append(
                "\n# kernels left as they were\nsteps that the GPU decides, and whose level was not fitted to "
                f"them, are {likelier:.1f} times likelier with the tables of the {gpu.name} than with this "
                "machine's rows"
            )
            judged = machine_steps.judge(steps, output)
        return [*notes, "", "# training steps", machine_steps.table(judged, reasons)]

    def _fits(self, steps: Sequence[Step]) -> Fits:
        return Fits.of(self.measured, self.below, steps)

    def _levelled(self, fits: Fits, steps: Sequence[Step]) -> Fits:
        """The fits with kernels at the level of untraced steps, as the cluster with the first ones predicts these."""
        gpu = gpu_of(self.below)
        level = machine_steps.level(steps, between(gpu))
        if fits.table is None or level is None:
            return fits
        self._write(fits)
        exact = level * machine_steps.missed(steps, level, self.paths.cluster)
        table = machine_gpu.fit(self.measured, base_of(self.below), gpu, exact)
        return replace(fits, table=table)

    def _write(self, fits: Fits) -> None:
        """Writes kernels and cluster as far as they are known."""
        self._write_kernels(fits)
        self._write_cluster(fits)

    def _write_cluster(self, fits: Fits) -> None:
        text = render(self.measured, self.base, self.below, self.paths, fits)
        files.write_text(self.paths.cluster, text)
        forget()

    def _write_kernels(self, fits: Fits) -> list[str]:
        """Writes the GPU's file and table, if kernels were measured; returns lines of the report."""
        if fits.table is None:
            return []
        write_rows(self.paths.table, fits.table.rows)
        text = machine_gpu.render(fits.table, self.measured, self.paths.table.name)
        files.write_text(self.paths.gpu, text)
        return ["", "# kernels", *fits.table.notes, fits.table.summary]

    def _nccl(self, fit_nccl: NcclFit) -> str:
        """Fits NCCL's constants, if collectives were measured; returns a line of the report."""
        rows = self.measured.file("collectives.jsonl")
        # With --force: those of an earlier measurement do not count for this one.
        self.paths.nccl.unlink(missing_ok=True)
        if rows is None:
            return "none measured: NCCL's constants stay as they were"
        try:
            return fit_nccl(rows, self.paths.nccl, self.base)
        except PrestepError as error:
            return f"not fitted, NCCL's constants stay as they were: {error}"

    def _how_sure(self) -> list[str]:
        """Intervals of NCCL's constants, if they were fitted."""
        rows, nccl = self.measured.file("collectives.jsonl"), self.paths.nccl
        if rows is None or not nccl.exists():
            return []
        note = _note(nccl, _intervals(rows, self.paths.cluster))
        return ["", "# how sure the constants are", note]


def _refuse_nothing(fits: Fits, measured: Measured) -> None:
    """Refuses a measurement that says nothing of any part, with what it skipped."""
    collectives = measured.file("collectives.jsonl")
    if fits.table or fits.host or fits.links or collectives:
        return
    reasons = {str(row.get("why", ""))[:80] for row in measured.rows("skipped")}
    hint = "; ".join(sorted(reasons))[:300]
    expected = "kernels, steps, copies or files"
    raise InputError.of(measured.name, "", "nothing that was measured", expected, hint)


def _intervals(rows: Path, cluster: Path) -> dict[str, Estimate]:
    """By algorithm and protocol: the middle of predicted over measured among held-out rows, and its interval.

    Parameters
    ----------
    cluster
        The cluster file that was written, which names the constants.
    """
    errors: dict[str, list[float]] = defaultdict(list)
    for row in collective_reader.read_lines(rows, str(cluster))[0]:
        if row.skip or not row.held_out:
            continue
        prediction = predict_collective.predict_row(row)
        if not prediction.error:
            errors[f"{prediction.algo} {prediction.proto}"].append(
                prediction.time / row.time
            )
    return {
        name: of_ratios(ratios)
        for name, ratios in sorted(errors.items())
        if len(ratios) >= LEAST_ROWS
    }


def _note(path: Path, intervals: dict[str, Estimate]) -> str:
    """Writes the intervals to the head of the file of constants; what was written."""
    lines = [f"{name}: {interval}" for name, interval in intervals.items()]
    if lines:
        head = [
            "# Predicted over measured, held-out rows, with 90 % bootstrap intervals:",
            *(f"# {x}" for x in lines),
        ]
        files.write_text(path, "\n".join([*head, path.read_text(encoding="utf-8")]))
    return (
        "\n".join(["predicted over measured, held-out rows:", *lines]) if lines else ""
    )


def _written(paths: Paths) -> tuple[str, str]:
    """The files that were written, and how the cluster is used."""
    output = paths.cluster
    names = ", ".join(path.name for path in paths.there)
    use = f'to use it: file = "{output}" in a scenario\'s [cluster], or `prestep collective --cluster {output}`'
    return f"wrote {names}", use


def forget() -> None:
    """Files of these names may have been read before they were replaced."""
    for cached in (
        measured_gpu.load_file,
        machine.load_file,
        predict_collective._fabric,
    ):
        cached.cache_clear()


def _with_gpu(base: str, gpu_file: Path, output: Path) -> str:
    """A cluster as `base` with the GPU of a file, written beside the others."""
    load_file(str(gpu_file))  # what is wrong with it, before anything is written
    head = "# Written by `prestep calibrate`: the cluster before calibration, with a GPU of its own."
    below = f'extends = "{named(base, output)}"'
    kernels = f'kernels = "{gpu_file.resolve()}"'
    files.write_text(output, "\n".join([head, below, kernels, ""]))
    return str(output)


def usual_cluster(measured: Measured) -> str:
    """The bundled cluster of such GPUs.

    Raises
    ------
    InputError
        If there is none.
    """
    gpu = known_gpu(measured.model)
    if measured.model and gpu in USUAL:
        own = f"{gpu}-host-{measured.world}"
        return own if measured.world in (2, 4) and gpu == "h200" else USUAL[gpu]
    found = f'"{measured.model}"' if measured.model else "no GPU"
    expected = f"one of {', '.join(sorted(USUAL))}"
    hint = "--cluster NAME|FILE: a cluster like this machine, whose GPU lends what was not measured"
    raise InputError.of(measured.name, "gpus", found, expected, hint)


def known_gpu(name: str) -> str:
    """The GPU that a driver's name means; "" if prestep has none such."""
    for words, gpu in NAMED.items():
        if words in name:
            return gpu
    parts = name.lower().replace("-", " ").split()
    return next(
        (gpu for gpu in sorted(gpu_names(), key=len, reverse=True) if gpu in parts), ""
    )
