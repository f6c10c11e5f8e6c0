"""Tokens on their way to the ranks of their experts, or back: what DeepEP's and HybridEP's kernels move."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tokens:
    """One exchange of one rank, the busiest.

    Attributes
    ----------
    way : str
        "dispatch" (to the experts) or "combine" (back, added up).
    count : float
        Tokens of the rank.
    size : float
        Bytes of one.
    ranks, hosts : float
        Ranks, and hosts, with experts that a token chose: its copies over NVLink and over the network.
    over : int
        Hosts of the group.
    sms : int
        That the kernel takes on every GPU.
    kernel : str
        Whose it is: "deepep" or "hybridep".
    """

    way: str
    count: float
    size: float
    ranks: float
    hosts: float
    over: int
    sms: int
    kernel: str = "deepep"
