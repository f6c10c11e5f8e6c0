"""`python -m lab.fit.token_exchanges`: what DeepEP's kernels take, from the packaged times of its exchanges.

Writes `sim/collectives/deepep.toml` (its keys: `prestep.sim.collectives.deepep`). One host: each GPU and way by itself.
Several hosts: what H100 take beyond that on 2 and 4; on 8 hosts the network of that machine was the limit. Prints
errors of the rows it was fitted to, then of those of the set `kernels`, which are in no fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from lab.fit.libraries import ROWS
from lab.formats.library_families import TABLES
from prestep.sim.collectives.deepep import FILE, HOSTS, PER_HOST, WAYS
from prestep.workloads.megatron.shard import distinct

#: Bytes/s of a GPU's NVLinks one way, and of its NIC.
NVLINK = {"h100": 450e9, "h200": 450e9, "b200": 900e9, "b300": 900e9}
NIC = 50e9
#: Bytes of an element that is sent. Dispatches were in fp8 with a scale for 128 elements (as bf16 they would exceed
#: NVLink: 583 of 450 GB/s), combines in bf16.
ELEMENT = {"dispatch": 1.0 + 4.0 / 128.0, "combine": 2.0}
KEYS = ("start", "start_byte", "token", "copy", "byte", "nvlink")
FIRST = (2e-5, 1e-9, 4e-7, 5e-8, 4e-11, 0.6)
OVER_KEYS = ("start", "work", "nic")
OVER_FIRST = (1e-5, 1.5, 0.9)
UNITS = {
    "start": "s",
    "start_byte": "s/B",
    "token": "s",
    "copy": "s",
    "byte": "s/B",
    "nvlink": "1",
    "work": "1",
    "nic": "1",
}
HEAD = """# DeepEP's kernels in normal mode (deepep.py). Written by lab/fit/token_exchanges.py; do not edit.
# token, copy, byte: seconds of one SM for a token, for each of its copies and for each byte of a copy. start_byte:
# of a token's size. nvlink, nic: shares of links that kernels reach. work: of a token on several hosts over one host.
"""


@dataclass(frozen=True, eq=False)
class Rows:
    """Exchanges of one GPU and way."""

    gpu: str
    way: str
    frame: pd.DataFrame

    @property
    def sent(self) -> pd.Series:
        """Bytes of a token."""
        sent: pd.Series = self.frame["hidden"] * ELEMENT[self.way]
        return sent

    @property
    def measured(self) -> np.ndarray:
        logs: np.ndarray = np.log(self.frame["us"].to_numpy(dtype=float) * 1e-6)
        return logs

    def _met(self, each: int) -> np.ndarray:
        """Places of so many ranks each that a token goes to."""
        keys = zip(
            self.frame["ranks"], self.frame["experts"], self.frame["topk"], strict=True
        )
        met = [distinct(int(n) // each, int(e), int(k)) for n, e, k in keys]
        return np.array(met, dtype=float)

    def work(self, p: np.ndarray) -> np.ndarray:
        """Seconds of the SMs on one host."""
        _, _, token, copy, byte, _ = p
        each = token + self._met(1) * (copy + byte * self.sent)
        return np.asarray(self.frame["tokens"] * each / self.frame["sms"])

    def start(self, p: np.ndarray) -> np.ndarray:
        start: np.ndarray = np.asarray(p[0] + p[1] * self.sent)
        return start

    def _nvlinks(self, share: float) -> np.ndarray:
        moved = self.frame["tokens"] * self._met(1) * self.sent
        away = 1.0 - 1.0 / PER_HOST
        return np.asarray(moved * away / (NVLINK[self.gpu] * share))

    def inside(self, p: np.ndarray) -> np.ndarray:
        """Seconds on one host."""
        seconds: np.ndarray = self.start(p) + np.maximum(
            self.work(p), self._nvlinks(p[-1])
        )
        return seconds

    def over(self, p: np.ndarray, inside: np.ndarray) -> np.ndarray:
        """Seconds on several hosts; ``inside``: what was found on one."""
        start, work, nic = p
        hosts = self.frame["ranks"] // PER_HOST
        away = self.frame["tokens"] * self._met(PER_HOST) * (1.0 - 1.0 / hosts)
        limits = [
            work * self.work(inside),
            self._nvlinks(inside[-1]),
            np.asarray(away * self.sent / (NIC * nic)),
        ]
        seconds: np.ndarray = start + self.start(inside) + np.maximum.reduce(limits)
        return seconds

    def on(self, *ranks: int) -> Rows:
        return Rows(self.gpu, self.way, self.frame[self.frame["ranks"].isin(ranks)])


def rows_of(path: Path) -> dict[tuple[str, str], Rows]:
    """Normal kernels of a file, by GPU and way."""
    frame = pd.read_parquet(path)
    frame = frame[frame["kernel"] == "deepep"]
    way = frame["variant"].astype(str).str.partition(" ")[0]
    return {
        (gpu, name): Rows(gpu, name, frame[(frame["gpu"] == gpu) & (way == name)])
        for gpu in NVLINK
        for name in WAYS
    }


def fitted(
    seconds: Callable[[np.ndarray], np.ndarray],
    measured: np.ndarray,
    first: tuple[float, ...],
) -> np.ndarray:
    """Positive parameters of the smallest errors in log time; few rows that lie apart count little."""
    found = least_squares(
        lambda p: np.log(seconds(np.exp(p))) - measured,
        np.log(first),
        loss="soft_l1",
        f_scale=0.05,
    )
    best: np.ndarray = np.exp(found.x)
    return best


def line(key: str, value: float, evidence: str, source: str) -> str:
    return (
        f'{key} = {{ value = {value:.4g}, unit = "{UNITS[key]}", '
        f'evidence = "{evidence}", source = "{source}" }}'
    )


def said(name: str, rows: Rows, seconds: np.ndarray) -> None:
    errors = np.expm1(np.log(seconds) - rows.measured)
    sizes = np.abs(errors)
    print(
        f"{name}: {len(sizes)} rows, median {np.median(sizes):.1%}, "
        f"90th percentile {np.quantile(sizes, 0.9):.1%}, bias {errors.mean():+.1%}"
    )


def main() -> None:
    """Fit, write, print."""
    known = rows_of(TABLES / "exchanges.parquet")
    held_out = rows_of(ROWS / "exchanges.parquet")
    inside: dict[tuple[str, str], np.ndarray] = {}
    text = [HEAD]
    for (gpu, way), rows in known.items():
        one = rows.on(PER_HOST)
        p = fitted(one.inside, one.measured, FIRST)
        inside[gpu, way] = p
        said(f"{gpu} {way}", one, one.inside(p))
        # A share that no row of so few SMs shows stays where it began.
        bound = abs(p[-1] / FIRST[-1] - 1.0) > 1e-3
        text.append(f"[{gpu}.{way}]")
        source = f"aiconfigurator, {len(one.frame)} exchanges of one host"
        text += [
            line(k, v, "fitted", source) for k, v in zip(KEYS[:-1], p, strict=False)
        ]
        share = p[-1] if bound else float(inside["h100", way][-1])
        why = source if bound else "as for h100: 4 to 24 SMs do not fill these links"
        text += [line(KEYS[-1], share, "fitted" if bound else "guess", why), ""]
    over = _over(known, inside, text)
    FILE.write_text("\n".join(text), encoding="utf-8")
    print("held out")
    _judged(held_out, inside, over)


def _over(
    known: Mapping[tuple[str, str], Rows],
    inside: Mapping[tuple[str, str], np.ndarray],
    text: list[str],
) -> dict[str, np.ndarray]:
    """What several hosts add."""
    over = {}
    for way in WAYS:
        rows, own = known["h100", way].on(16, 32), inside["h100", way]
        p = fitted(partial(rows.over, inside=own), rows.measured, OVER_FIRST)
        over[way] = p
        said(f"h100 {way}, 2 and 4 hosts", rows, rows.over(p, own))
        text.append(f"[{HOSTS}.{way}]")
        source = f"aiconfigurator, {len(rows.frame)} exchanges of 2 and 4 hosts of H100, 7,168 wide"
        text += [
            line(k, v, "fitted", source) for k, v in zip(OVER_KEYS, p, strict=True)
        ]
        text.append("")
    return over


def _judged(
    rows: Mapping[tuple[str, str], Rows],
    inside: Mapping[tuple[str, str], np.ndarray],
    over: Mapping[str, np.ndarray],
) -> None:
    for (gpu, way), mine in rows.items():
        one = mine.on(PER_HOST)
        said(f"{gpu} {way}", one, one.inside(inside[gpu, way]))
    for way in WAYS:
        for ranks in (16, 32, 64):
            some, own = rows["h100", way].on(ranks), inside["h100", way]
            said(
                f"h100 {way}, {ranks // PER_HOST} hosts",
                some,
                some.over(over[way], own),
            )


if __name__ == "__main__":
    main()
