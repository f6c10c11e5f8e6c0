"""What `torch.cuda` answers where there is no GPU: what the GPU that is meant would, as far as a program can see it."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch

from prestep.workloads.capture.record import typed
from prestep.workloads.capture.record.streams import (
    SHOWN,
    Event,
    Log,
    Stream,
    Streams,
    Within,
)
from prestep.workloads.operation import words

#: Functions that have nothing to do here.
IDLE = words(
    "_lazy_init init set_device empty_cache ipc_collect manual_seed manual_seed_all seed set_rng_state "
    "set_rng_state_all reset_peak_memory_stats reset_max_memory_allocated reset_accumulated_memory_stats "
    "set_per_process_memory_fraction _record_memory_history _dump_snapshot"
)
#: Figures of memory, which nobody knows before the recording is run.
MEMORY = words(
    "memory_allocated memory_reserved max_memory_allocated max_memory_reserved utilization memory_usage "
    "temperature power_draw clock_rate"
)
#: Versions of cuDNN and NCCL, of wheels for CUDA 13: programs ask whether they are new enough.
CUDNN, NCCL = 91300, (2, 28, 9)
#: Counts that PyTorch's own table of memory names.
COUNTS = {"num_ooms": 0, "num_alloc_retries": 0}


def answer(properties: SimpleNamespace, gpus: int, local_rank: int) -> None:
    """Gives `torch.cuda` its answers, for this process.

    Parameters
    ----------
    properties
        What `get_device_properties` gives.
    gpus, local_rank
        GPUs of the host, and which of them is this process's.
    """
    answers = {
        **dict.fromkeys(IDLE, _nothing),
        **dict.fromkeys(MEMORY, lambda device=None: 0),
        **_of_devices(properties, gpus, local_rank),
        **_of_streams(),
        **_of_memory(properties, gpus),
    }
    cuda, any_kind = torch.cuda, torch.accelerator
    # Its own modules hold the functions by name, too.
    modules = cuda.random, cuda.memory, cuda.streams, cuda.graphs, any_kind
    for module in (cuda, *modules):
        for name, value in answers.items():
            if module is cuda or hasattr(module, name):
                setattr(module, name, value)
    for name, older in typed.TYPES.items():
        setattr(cuda, name, older)
    typed.install()
    torch.Generator = Generator
    torch.Event, torch.Stream = Event, Stream
    cuda.default_generators = (Generator("cuda"),) * gpus
    cuda.nccl.version = lambda: NCCL
    torch.backends.cuda.preferred_linalg_library = _nothing
    torch._C._cuda_getDevice = answers["current_device"]
    torch._C._cuda_setDevice = _nothing
    torch._use_cudnn_rnn_flatten_weight = lambda: False  # weights lie where they are
    cudnn: Any = torch.backends.cudnn
    cudnn.is_available = cudnn.is_acceptable = lambda *_: True
    cudnn.version = lambda: CUDNN
    torch._C._get_accelerator = lambda check=None: torch.device("cuda")
    torch.accelerator.current_accelerator = _accelerator
    torch.accelerator.is_available = lambda: True
    torch.version.cuda = torch.version.cuda or "13.0"


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _accelerator(check_available: bool = False) -> torch.device:
    return torch.device("cuda")


def _of_devices(
    properties: SimpleNamespace, gpus: int, local_rank: int
) -> dict[str, Any]:
    capability = properties.major, properties.minor
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: gpus,
        "current_device": lambda: local_rank,
        "current_device_index": lambda: local_rank,
        "_exchange_device": lambda device: local_rank,
        "_maybe_exchange_device": lambda device: local_rank,
        "get_device_name": lambda device=None: properties.name,
        "get_device_capability": lambda device=None: capability,
        "get_device_properties": lambda device=None: properties,
        "is_bf16_supported": lambda including_emulation=True: properties.major >= 8,
        "get_arch_list": lambda: [f"sm_{properties.major}{properties.minor}"],
        "can_device_access_peer": lambda *args: True,
    }


def _of_streams() -> dict[str, Any]:
    return {
        "Stream": Stream,
        "Event": Event,
        "ExternalStream": Stream,
        "stream": Within,
        "StreamContext": Within,
        "current_stream": lambda device=None: Streams.now,
        "default_stream": lambda device=None: Streams.default,
        "set_stream": Streams.switch,
        "synchronize": lambda device=None: Log.current.add("host_waits_all"),
    }


def _of_memory(properties: SimpleNamespace, gpus: int) -> dict[str, Any]:
    whole = properties.total_memory
    return {
        "mem_get_info": lambda device=None: (whole, whole),
        "memory_stats": lambda device=None: defaultdict(int, COUNTS),
        "memory_snapshot": lambda *args, **options: [],
        "initial_seed": lambda: 0,
        "get_rng_state": lambda device=None: _seed(),
        "get_rng_state_all": lambda: [_seed()] * gpus,
    }


def _seed() -> torch.Tensor:
    """The state of a generator of random numbers."""
    return torch.zeros(16, dtype=torch.uint8, device="cpu")


class _Kind(type(torch.Generator)):  # type: ignore[misc]
    """The class of what stands in `torch.Generator`'s place, which knows those that PyTorch made, too."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_Kind):
    """A generator of random numbers, whose seed is kept on the host whatever device it is for."""

    on_gpu: bool

    def __new__(cls, device: Any = "cpu") -> Generator:
        made: Generator = super().__new__(cls, "cpu")
        made.on_gpu = isinstance(device, int) or "cuda" in str(device)
        return made

    @property
    def device(self) -> torch.device:
        return SHOWN if self.on_gpu else torch.device("cpu")

    def get_state(self) -> torch.Tensor:
        return _seed() if self.on_gpu else super().get_state()

    def set_state(self, new_state: torch.Tensor) -> Any:
        return self if self.on_gpu else super().set_state(new_state)

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> None:
        """Nothing is drawn from it."""
