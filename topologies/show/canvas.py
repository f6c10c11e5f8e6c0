"""What pictures of clusters share: colours, a figure without margins, and boxes."""

from __future__ import annotations

from typing import Any

from matplotlib.patches import FancyBboxPatch

from prestep.sim import pictures

NODE_COLOURS = {
    "nvswitch": "#76b900", "gpu": "#4d7c0f", "pcieswitch": "#b7791f", "cpu": "#1d4ed8", "memory": "#60a5fa",
    "nic": "#7c3aed", "nvme": "#0f766e", "network": "#a78bfa", "leaf": "#be185d", "spine": "#9f1239", "core": "#7f1d1d",
    "switch": "#be185d",
}  # fmt: skip
LINK_COLOURS = {
    "nvlink": "#76b900", "pcie": "#d69e2e", "socket": "#1d4ed8", "memory": "#60a5fa",
    "nic": "#7c3aed", "nvme": "#0f766e", "spine": "#be185d", "core": "#7f1d1d", "c2c": "#0891b2",
}  # fmt: skip
GREY = "#64748b"
DARK = "#0f172a"


def canvas(wide: float, high: float) -> tuple[Any, Any]:
    """A figure of that size in inches, and axes that fill it."""
    figure = pictures.figure(wide, high)
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.axis("off")
    return figure, axes


def box(
    axes: Any,
    corner: tuple[float, float],
    size: tuple[float, float],
    rounding: float,
    **style: Any,
) -> None:
    """A box with round corners; `corner` is the lower left one."""
    shape = f"round,pad=0,rounding_size={rounding}"
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=shape, **style))


def node_style(kind: str, edge: float) -> dict[str, Any]:
    """How the box of a node of some kind looks; `edge` is the width of its white edge."""
    return {"fc": NODE_COLOURS.get(kind, GREY), "ec": "white", "lw": edge, "zorder": 3}
