"""Sizes of the models that are trained, without PyTorch: prestep predicts them by
`prestep.validation.formats.scenarios`."""

from __future__ import annotations

REHEARSED = ("tiny", "moetiny")
# Hidden size, layers, heads, key and value heads, feed-forward size, vocabulary.
SIZES = {
    "llama125m": (768, 12, 12, 12, 2048, 32000),
    "llama500m": (1536, 16, 12, 4, 4096, 50304),
    "llama1b": (2048, 16, 32, 8, 8192, 128256),
    "llama2b": (2560, 20, 20, 4, 6912, 64000),
    "llama3b": (3072, 28, 24, 8, 8192, 128256),
    "llama8b": (4096, 32, 32, 8, 14336, 128256),
    "llama13b": (5120, 40, 40, 40, 13824, 32000),
    "moe8x": (2048, 8, 16, 16, 4096, 32000),
    "moe4l": (1024, 4, 16, 16, 2048, 32000),
    "moe12l": (1536, 12, 12, 12, 3072, 32000),
    "qwen1b5": (1536, 28, 12, 2, 8960, 151936),
    "llama7b": (4096, 32, 32, 32, 11008, 32000),
    "narrow1b": (1280, 40, 20, 20, 3456, 50304),
    "wide6b": (6144, 12, 48, 8, 16384, 64000),
    "moe6w": (2048, 6, 16, 4, 5632, 64000),
    "wide4b": (4096, 16, 32, 8, 12288, 64000),
    "deep700m": (1024, 48, 16, 4, 2816, 32000),
    "moe8w": (2560, 8, 20, 4, 4096, 50304),
    "h4": (256, 4, 8, 4, 512, 1024),
    "h16": (256, 16, 8, 4, 512, 1024),
    "tiny": (64, 4, 4, 2, 128, 256),
    "moetiny": (64, 2, 4, 4, 64, 256),
}
