"""How NCCL counts a GPU's generation and a release."""

from __future__ import annotations

from dataclasses import replace

from prestep.sim.costs import gpu_files
from prestep.sim.costs.generation import Generation
from prestep.sim.errors import InputError, unknown


def generation(gpu: str) -> Generation:
    """Returns the generation of a GPU model, as its file says.

    Raises
    ------
    InputError
        If no file describes the GPU.
    """
    if gpu.lower() not in gpu_files.names():
        hint = "describe it in sim/costs/hardware, with its generation, or name one that is like it"
        raise InputError(
            replace(unknown("cluster", "gpu", gpu, gpu_files.names()), hint=hint)
        )
    return gpu_files.generation_of(gpu)


def most_channels(release: tuple[int, int]) -> int:
    """MAXCHANNELS of a release."""
    return 64 if release >= (2, 25) else 32
