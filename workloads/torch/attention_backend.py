"""Which kernel PyTorch's scaled_dot_product_attention takes for 16-bit causal attention where nothing else is said."""

from __future__ import annotations

#: PyTorch whose wheels come with a cuDNN that it prefers: above 9.15.0 (sdp_utils.cpp, check_prefer_cudnn_attention,
#: which is there from 2.10; 2.11 is the first with such a cuDNN). 2.5.0 preferred it on Hopper, and 2.5.1 took that
#: back (pytorch/pytorch#138522). Recorded with 2.11 on H100 and H200: cuDNN for heads of 64 and 128.
PREFERRED = (2, 11)
#: Majors of compute capabilities on which it does: data-centre Hopper and Blackwell, not those of workstations (12).
MAJORS = (9, 10)
#: What a reader of a recipe is told.
CUDNN = (
    "attention by cuDNN, which PyTorch from 2.11 takes on Hopper and Blackwell where it is told nothing else (before, "
    'and on other GPUs, FlashAttention 2: pytorch.attention = "flash2")'
)


def default_backend(version: str, capability: tuple[int, int]) -> str:
    """Returns "cudnn" or "flash2", by the version of PyTorch and the GPU's compute capability.

    Examples
    --------
    >>> default_backend("2.11", (9, 0)), default_backend("2.9.1", (9, 0))
    ('cudnn', 'flash2')
    >>> default_backend("2.13.0+cpu", (10, 0)), default_backend("2.13", (8, 0))
    ('cudnn', 'flash2')
    """
    major, minor = (
        int("".join(filter(str.isdigit, part))) for part in version.split(".")[:2]
    )
    preferred = (major, minor) >= PREFERRED and capability[0] in MAJORS
    return "cudnn" if preferred else "flash2"
