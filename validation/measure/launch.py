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

from validation.measure.options import Place

ROOT = Path(__file__).parents[2]
WORKER = "validation.measure.worker"
# What torchrun tells its own processes; ours have a rendezvous of their own.
_AGENT = ("TORCHELASTIC_", "GROUP_", "ROLE_", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
AFTER_A_DEATH = 6.0  # s that the others are given to end by themselves


@dataclass(frozen=True)
class Ended:
    """How a group ended: exit codes by rank (None: it was ended), and the end of what they said."""

    codes: Mapping[int, int | None]
    said: str = ""

    @property
    def good(self) -> bool:
        return all(code == 0 for code in self.codes.values())


def run_group(
    spec: Path,
    place: Place,
    ranks: int,
    env: Mapping[str, str],
    logs: Path,
    until: float,
    port: int,
    module: str = WORKER,
) -> Ended:
    """Starts this controller's processes of a group and waits for them, at most until the time `until`."""
    mine = [place.rank] if place.torchrun else list(range(ranks))
    processes = {
        rank: _start(spec, place, rank, ranks, env, logs, port, module)
        for rank in mine
        if rank < ranks
    }
    died: float | None = None
    while any(p.poll() is None for p in processes.values()):
        now = time.time()
        if died is None and any(p.poll() not in (None, 0) for p in processes.values()):
            died = now
        if now > until or (died is not None and now > died + AFTER_A_DEATH):
            break
        time.sleep(0.05)
    codes = {rank: p.poll() for rank, p in processes.items()}
    for process in processes.values():
        _end(process)
    return Ended(codes, _tails(logs, processes))


def _start(
    spec: Path,
    place: Place,
    rank: int,
    ranks: int,
    env: Mapping[str, str],
    logs: Path,
    port: int,
    module: str,
) -> subprocess.Popen[bytes]:
    local = place.local_rank if place.torchrun else rank
    address = (
        os.environ.get("MASTER_ADDR", "127.0.0.1") if place.torchrun else "127.0.0.1"
    )
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_AGENT)}
    path = os.pathsep.join(filter(None, (str(ROOT), inherited.get("PYTHONPATH", ""))))
    mine = {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(min(place.local_world, ranks)),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": inherited.get("OMP_NUM_THREADS", "1"),
    }
    log = (logs / f"{spec.stem}.rank{rank}.log").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", module, str(spec)],
            env={**inherited, **mine, **env},
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


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
                f"rank {rank}: {path.read_text(errors='replace')[-800:].replace(str(ROOT), '')}"
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
