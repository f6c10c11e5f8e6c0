"""What a prediction says of links: each by itself, all of a kind, and a link over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Link:
    """A directed link of the fabric over a step.

    Attributes
    ----------
    name : str
        "from -> to".
    utilisation : float
        Share of what it could have carried, 0 to 1: what protocols add to the data counts.
    bytes : float
        Bytes of data that it carried over the run, without what protocols add: flags (LL, LL128) and packet headers.
    shadow_price : float or None
        Seconds of step time that a relative gain of its bandwidth would save, per unit (0.01 s: 1 % more saves 100 us),
        together with the links that are as tight as it (`tied` in all): one of several equally tight links alone saves
        nothing. None: not computed. See `prestep.sim.analysis.shadow_prices`.
    kind : str
        "nvlink", "nic", ...
    tied : int
        Links that share the price.
    peak : float
        The highest share of its bandwidth that it carried at any time.
    profile : tuple of float
        Share of its bandwidth that it carried in equal parts of the last step.
    """

    name: str
    utilisation: float
    bytes: float
    shadow_price: float | None = None
    kind: str = ""
    tied: int = 0
    peak: float = 0.0
    profile: tuple[float, ...] = ()


@dataclass(frozen=True)
class LinkKind:
    """All links of a kind together.

    Attributes
    ----------
    links : int
        Directed links that carried anything.
    utilisation : float
        Of the busiest of them, 0 to 1.
    bytes : float
        Bytes of data that all of them carried over the run.
    held : float
        Seconds of the last step in which a full link of the kind held a transfer back.
    shadow_price : float or None
        Seconds of step time per relative gain of the bandwidth of all links of the kind: 1 % more saves a hundredth.
        0 where a faster kind costs no more than 0.1 % of the step.
    cause : str
        Why a faster kind costs time, where the price is negative.
    """

    kind: str
    links: int
    utilisation: float
    bytes: float
    held: float
    shadow_price: float | None = None
    cause: str = ""


@dataclass(frozen=True, eq=False)
class LinkLoad:
    """What a link carried over time: from `time[i]` (seconds) on, `load[i]` of its `bandwidth` (bytes/s)."""

    name: str
    bandwidth: float
    time: np.ndarray
    load: np.ndarray
