"""Colours of the groups in pictures of comparisons."""

from __future__ import annotations

# Okabe and Ito's colours (told apart by the colour-blind too), their yellow darkened for white paper.
PALETTE = (
    "#000000",
    "#0072B2",
    "#56B4E9",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#B8860B",
    "#7F7F7F",
)
