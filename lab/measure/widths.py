"""Attention by the width of its heads, which chooses the kernel that a library has for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lab.measure.attention import attention
from lab.measure.case import Case

ROUND = 5
#: Head dimensions beside 64 and 128, of which there are many rows.
WIDTHS = (32, 40, 48, 72, 80, 88, 96, 112, 160, 192, 224, 256)
#: batch, heads, key and value heads, length
SIZES = ((2, 16, 16, 2048), (2, 16, 4, 4096), (16, 12, 12, 512))


def cases() -> Iterator[Case]:
    for size in SIZES:
        for width in WIDTHS:
            for backend in ("flash", "cudnn", "efficient"):
                for causal in (True, False):
                    setting = {"causal": causal}
                    for case in attention((*size, width), backend, setting, ROUND):
                        yield replace(case, family="attention_by_width")
