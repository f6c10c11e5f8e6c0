"""What the machine is, and how its GPU fares: clocks, watts, temperature."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from typing import Any

import torch

ASKED = (
    "timestamp,clocks.sm,clocks.mem,power.draw.instant,power.draw.average,"
    "temperature.gpu,clocks_event_reasons.active"
)


def described() -> dict[str, Any]:
    """GPU, driver, libraries, processor."""
    row: dict[str, Any] = {
        "kind": "system",
        "torch": torch.__version__,
        "python": platform.python_version(),
        **_processor(),
    }
    if not torch.cuda.is_available():
        return row
    gpu = torch.cuda.get_device_properties(0)
    return row | {
        "gpu": gpu.name,
        "sms": gpu.multi_processor_count,
        "memory_bytes": gpu.total_memory,
        "l2_bytes": gpu.L2_cache_size,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nvidia_smi": _said(
            "nvidia-smi",
            "--query-gpu=name,driver_version,power.limit,clocks.max.sm,clocks.max.mem,vbios_version",
            "--format=csv",
        ),
        "tf32_products": torch.backends.cuda.matmul.allow_tf32,
        "tf32_convolutions": torch.backends.cudnn.allow_tf32,
    }


def _processor() -> dict[str, Any]:
    wanted = (
        "Model name",
        "CPU MHz",
        "CPU max MHz",
        "L1d cache",
        "L2 cache",
        "L3 cache",
        "NUMA node(s)",
        "Hypervisor vendor",
        "BogoMIPS",
    )
    lines = (line.partition(":") for line in _said("lscpu").splitlines())
    return {
        "cores": os.cpu_count(),
        "processor": {
            name.strip(): value.strip()
            for name, _, value in lines
            if name.strip() in wanted
        },
    }


def _said(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=False
    )
    return done.stdout.strip() or done.stderr.strip()[:500]


class Sampler:
    """nvidia-smi in the background: one line of `ASKED` every fifth of a second, into a file."""

    def __init__(self, path: str) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if shutil.which("nvidia-smi"):
            command = [
                "nvidia-smi",
                f"--query-gpu={ASKED}",
                "--format=csv,noheader,nounits",
                "--loop-ms=200",
            ]
            with open(path, "ab") as file:
                self._process = subprocess.Popen(
                    command, stdout=file, stderr=subprocess.STDOUT
                )

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


class Meter:
    """Energy, clock and temperature by NVML, where the library is installed."""

    def __init__(self) -> None:
        self._nvml: Any = None
        try:
            import pynvml  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            return
        pynvml.nvmlInit()
        self._nvml, self._gpu = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)

    def joules(self) -> float | None:
        return (
            None
            if self._nvml is None
            else self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu) * 1e-3
        )

    def clock(self) -> float | None:
        """Of the multiprocessors, in Hz."""
        if self._nvml is None:
            return None
        megahertz = self._nvml.nvmlDeviceGetClockInfo(
            self._gpu, self._nvml.NVML_CLOCK_SM
        )
        return float(megahertz * 1e6)

    def celsius(self) -> float | None:
        return (
            None
            if self._nvml is None
            else float(self._nvml.nvmlDeviceGetTemperature(self._gpu, 0))
        )
