"""Hosts by which of their ports lead to the same switch: what a node chooses from is the same in all of one shape."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from prestep.topologies.core.links import Ints, distinct


class Shapes(NamedTuple):
    """Which ports of hosts share a switch: array (shapes, ports) of the first such port, and every host's shape."""

    first: Ints
    of_host: Ints

    @classmethod
    def of(cls, switches: Ints) -> Shapes:
        """Returns the shapes of hosts with these switches behind their ports, array (hosts, ports).

        Examples
        --------
        >>> shapes = Shapes.of(np.array([[8, 9, 8], [5, 6, 5], [7, 7, 7]]))
        >>> shapes.first.tolist(), shapes.of_host.tolist()
        ([[0, 0, 0], [0, 1, 0]], [1, 1, 0])
        """
        order = np.argsort(switches, axis=1, kind="stable")
        ranked = np.take_along_axis(switches, order, axis=1)
        is_first = np.diff(ranked, axis=1, prepend=-1) != 0
        place = np.where(is_first, np.arange(switches.shape[1]), 0)
        begin = np.maximum.accumulate(place, axis=1)
        first = np.empty_like(order)
        np.put_along_axis(first, order, np.take_along_axis(order, begin, 1), 1)
        some, of_host = distinct(first)
        return cls(first[some], of_host)
