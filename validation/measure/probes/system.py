"""What the machine is: software, GPUs and their links, processor, memory. Nothing is changed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from prestep.validation.measure.launch import names_of
from prestep.validation.measure.session import Session
from prestep.workloads.operation import words

TITLE, NEEDS, WEIGHT, ORDER = "the machine", "host", 4.0, 0
PACKAGES = words(
    "torch triton torchvision numpy nvidia-nccl-cu12 nvidia-nccl-cu13 transformer-engine"
)
QUERY = (
    "name,driver_version,memory.total,pci.bus_id,pcie.link.gen.max,pcie.link.width.max,power.limit,clocks.max.sm,"
    "clocks.max.mem,clocks.sm,clocks.mem,power.draw,temperature.gpu,ecc.mode.current,compute_mode,mig.mode.current"
)
PREFIXES = ("NCCL_", "CUDA_", "TORCH_", "NVSHMEM_", "OMP_", "PYTORCH_", "UCX_")
ASKED = {
    "gpus": ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv"],
    "links": ["nvidia-smi", "topo", "-m"],
    "nvlink": ["nvidia-smi", "nvlink", "-s"],
    "throttling": ["nvidia-smi", "-q", "-d", "PERFORMANCE"],
    "processor": ["lscpu"],
    "disks": ["df", "-hT", "--exclude-type=tmpfs"],
    "infiniband": ["ibstat"],
}
_PRIVATE = re.compile(r"(GPU-|MIG-)[0-9a-f]{8}-[0-9a-f-]+|(?<=GUID: )0x[0-9a-f]+", re.I)


def measure(session: Session) -> None:
    """One row."""
    answers = {name: _asked(command, session) for name, command in ASKED.items()}
    session.emit(
        "system",
        node=session.rank,
        kernel=platform.release(),
        machine=platform.machine(),
        cpus=os.cpu_count(),
        python=platform.python_version(),
        packages=_packages(),
        memory=_memory(),
        env=names_of(os.environ, PREFIXES),
        said={name: text for name, text in answers.items() if text},
    )


def _asked(command: list[str], session: Session) -> str:
    """What a tool says; nothing where it is not there."""
    if shutil.which(command[0]) is None:
        session.skip(" ".join(command[:3])[:60], f"{command[0]} is not here")
        return ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        session.skip(" ".join(command[:3])[:60], error)
        return ""
    return _PRIVATE.sub("(id)", done.stdout)[:20_000]


def _packages() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _memory() -> dict[str, int]:
    """Bytes, as the kernel says."""
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    found = (
        re.match(r"(MemTotal|MemAvailable|HugePages_Total):\s+(\d+)( kB)?", line)
        for line in lines
    )
    return {m[1]: int(m[2]) * (1024 if m[3] else 1) for m in found if m}
