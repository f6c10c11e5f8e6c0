"""Which kernel PyTorch's scaled_dot_product_attention takes where the program leaves the choice to PyTorch.

As aten/src/ATen/native/transformers/cuda/sdp_utils.cpp orders and refuses kernels, for dense tensors of 16 bits without
a mask. Where cuDNN comes first, by release and by the cuDNN that its wheel requires (datasheet: sources and wheels):

* 2.5.0 (9.1.0): on compute capability 9.0; 2.5.1: never (pytorch/pytorch#138522)
* 2.6 to 2.8 (9.1 to 9.10): only where TORCH_CUDNN_SDPA_PREFERRED asks for it
* 2.9 (9.10.2): never; the wheel's function has no check of the GPU left (disassembled: 2.9.1)
* 2.10 (9.10.2): on 9.0, 10.0 and 10.3 with cuDNN above 9.15.0, which this wheel has not
* from 2.11 (9.19.0): there (measured: 2.11 on H100 and H200, heads of 64, 128 and 256)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from prestep.workloads.job import JobSpec
    from prestep.workloads.models.model import ModelSpec

#: Values of `pytorch.attention` by what PyTorch takes.
OF_PYTORCH: dict[str, Literal["cudnn", "flash", "efficient"]] = {
    "cudnn": "cudnn",
    "flash2": "flash",
    "efficient": "efficient",
}
J = TypeVar("J", bound="JobSpec")
#: First release whose wheels' cuDNN is preferred, and on what: no workstation's Blackwell (12.0).
PREFERRED, CAPABILITIES = (2, 11), ((9, 0), (10, 0), (10, 3))
#: Widest heads: of cuDNN's kernels (`check_cudnn_tensor_shapes`), and of FlashAttention 2.
WIDEST, WIDEST_OF_HOPPER, WIDEST_OF_FLASH = 128, 256, 256
#: Queries and values of latent attention, which cuDNN takes on data-centre Blackwell from 9.11 on.
LATENT = (192, 128)


def default_backend(
    version: str,
    capability: tuple[int, ...],
    query: int = 128,
    value: int = 0,
    ordered: bool = False,
) -> str:
    """Returns "cudnn", "flash2" or "efficient" (PyTorch's memory-efficient kernels), for its wheel on PyPI.

    ``query``, ``value``: widths of heads; 0: values are as wide as queries. ``ordered``: gradients have one order of
    sums, which cuDNN's have not in PyTorch (`check_cudnn_deterministic`).

    Examples
    --------
    >>> default_backend("2.11", (9, 0)), default_backend("2.9.1", (9, 0))
    ('cudnn', 'flash2')
    >>> default_backend("2.11", (10, 0), 256), default_backend("2.11", (8, 0), 192, 128)
    ('flash2', 'efficient')
    """
    preferred = prefers_cudnn(version, capability) and not ordered
    if preferred and fits_cudnn(capability, query, value):
        return "cudnn"
    even = value in (0, query) and query <= WIDEST_OF_FLASH
    return "flash2" if even and capability >= (8, 0) else "efficient"


def prefers_cudnn(version: str, capability: tuple[int, ...]) -> bool:
    """Whether cuDNN's kernels come first in PyTorch's order."""
    if version.partition("+")[0] == "2.5.0":
        return capability == (9, 0)
    return release_of(version) >= PREFERRED and capability in CAPABILITIES


def release_of(version: str) -> tuple[int, ...]:
    """The first two numbers of a version of PyTorch."""
    return tuple(int("".join(filter(str.isdigit, n))) for n in version.split(".")[:2])


def fits_cudnn(capability: tuple[int, ...], query: int, value: int = 0) -> bool:
    """Whether cuDNN's kernels take heads of these widths, of a cuDNN that is preferred."""
    value = value or query
    if capability[:1] == (10,) and (query, value) == LATENT:
        return True
    widest = WIDEST_OF_HOPPER if capability == (9, 0) else WIDEST
    return max(query, value) <= widest and query % 8 == value % 8 == 0


def backend_of(
    job: JobSpec, model: ModelSpec, capability: tuple[int, ...], keys: Sequence[str]
) -> str:
    """Returns the kernel that PyTorch takes for a model's attention on this GPU; "" where the job names one.

    ``keys``: those of [pytorch] that the framework reads.
    """
    plain = job.pytorch.attention == "auto" and "attention" in keys
    if not plain and job.megatron.attention != "sdpa":
        return ""
    query = int(getattr(model, "query_dim", 0) or WIDEST)
    value = getattr(model, "v_head_dim", 0) if getattr(model, "latent", False) else 0
    widths, ordered = (query, int(value or 0)), job.training.deterministic
    return default_backend(job.pytorch.version, capability, *widths, ordered)


def settled(job: J, backend: str, experts: Literal["loop", "grouped"]) -> J:
    """Returns the job with its attention named, where it leaves the choice to PyTorch, and how its experts run.

    Layers of Megatron have no memory-efficient kernel: it counts as cuDNN's, whose values may be narrower as well.
    """
    plain, engine = replace(job.pytorch, experts=experts), job.megatron
    if plain.attention == "auto" and backend:
        plain = replace(plain, attention=OF_PYTORCH[backend])
    if engine.attention == "sdpa":
        engine = replace(engine, attention="flash2" if backend == "flash2" else "flash")
    return replace(job, pytorch=plain, megatron=engine)
