"""Groups of processes: one per GPU, started together with their environment, and ended together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import prestep
from prestep.sim.threads import environment
from prestep.validation.measure.options import Place

WORKER = "prestep.validation.measure.worker"
# What torchrun tells its own processes; ours have a rendezvous of their own.
_AGENT = ("TORCHELASTIC_", "GROUP_", "ROLE_", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
AFTER_A_DEATH = 6.0  # s that the others are given to end by themselves


@dataclass(frozen=True)
class Ended:
    """How a group ended: exit codes by rank (None: it was ended), and the end of their output."""

    codes: Mapping[int, int | None]
    output: str = ""

    @property
    def by_rank(self) -> dict[str, int | None]:
        """Exit codes as JSON has them."""
        return {str(rank): code for rank, code in self.codes.items()}

    @property
    def good(self) -> bool:
        """Whether every process ended by itself and well."""
        return all(code == 0 for code in self.codes.values())


def run_group(
    spec: Path,
    place: Place,
    ranks: int,
    env: Mapping[str, str],
    logs: Path,
    until: float,
    port: int,
) -> Ended:
    """Starts this controller's processes of a group and waits for them, at most until the time `until`."""
    mine = [place.rank] if place.torchrun else list(range(ranks))
    processes = {
        rank: _start(spec, place, rank, ranks, env, logs, port)
        for rank in mine
        if rank < ranks
    }
    _wait(list(processes.values()), until)
    codes = {rank: process.poll() for rank, process in processes.items()}
    for process in processes.values():
        _end(process)
    return Ended(codes, _tails(logs, processes))


def _wait(processes: Sequence[subprocess.Popen[bytes]], until: float) -> None:
    """Waits until all have ended; when one dies, the others are given a little time to end by themselves."""
    died: float | None = None
    while any(process.poll() is None for process in processes):
        now = time.time()
        failed = any(process.poll() not in (None, 0) for process in processes)
        if died is None and failed:
            died = now
        if now > until or (died is not None and now > died + AFTER_A_DEATH):
            break
        time.sleep(0.05)


def _start(
    spec: Path,
    place: Place,
    rank: int,
    ranks: int,
    env: Mapping[str, str],
    logs: Path,
    port: int,
) -> subprocess.Popen[bytes]:
    """Starts the process of one rank; what it prints goes to its log."""
    log = (logs / f"{spec.stem}.rank{rank}.log").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", WORKER, str(spec)],
            env={**_variables(place, rank, ranks, port), **env},
            cwd=prestep.HOME,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def _variables(place: Place, rank: int, ranks: int, port: int) -> dict[str, str]:
    """Variables of this process without torchrun's own, and those by which ranks find each other."""
    inherited = {k: v for k, v in environment().items() if not k.startswith(_AGENT)}
    here = "127.0.0.1"
    address = os.environ.get("MASTER_ADDR", here) if place.torchrun else here
    path = os.pathsep.join(
        filter(None, (str(prestep.HOME), inherited.get("PYTHONPATH", "")))
    )
    return {
        **inherited,
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(place.local_rank if place.torchrun else rank),
        "LOCAL_WORLD_SIZE": str(min(place.local_world, ranks)),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": inherited.get("OMP_NUM_THREADS", "1"),
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that we started, and the ones it started."""
    for signal_, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 10.0)):
        if process.poll() is not None:
            return
        try:
            os.killpg(
                process.pid, signal_
            )  # its own session, so its process group is its id
            process.wait(patience)
        except (ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            continue


def _tails(logs: Path, processes: Mapping[int, subprocess.Popen[bytes]]) -> str:
    failed = [rank for rank, process in processes.items() if process.poll() != 0]
    texts = []
    for rank in failed[:2]:
        for path in sorted(
            logs.glob(f"*.rank{rank}.log"), key=lambda p: p.stat().st_mtime
        )[-1:]:
            texts.append(
                f"rank {rank}: {path.read_text(errors='replace')[-800:].replace(str(prestep.HOME), '')}"
            )
    return "\n".join(texts)


def free_port(place: Place, stage: int) -> int:
    """A port of this host that is free; in a job the n-th after torchrun's, which all hosts can work out."""
    if place.torchrun:
        return int(os.environ.get("MASTER_PORT", "29500")) + 1 + stage
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def names_of(
    env: Mapping[str, str],
    prefixes: Sequence[str] = ("NCCL_", "TORCH_", "CUDA_", "NVSHMEM_"),
) -> dict[str, str]:
    """Variables that bear on what is measured."""
    return {k: v for k, v in sorted(env.items()) if k.startswith(tuple(prefixes))}
