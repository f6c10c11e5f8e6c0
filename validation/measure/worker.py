"""One process of a group: `python -m prestep.validation.measure.worker SPEC.json`, with torchrun's variables set."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from prestep.validation.measure.group import GroupSession
from prestep.validation.measure.plan import load
from prestep.validation.measure.session import described

# s after which a collective of a training step is stuck: the process ends, and the controller goes on without the case.
# Probes of single GPUs may keep others waiting for as long as the stage lasts.
PATIENCE = 90.0
LARGEST = 64 * 2**20  # bytes of one host's files that are collected


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the probes of a stage; an error in one is recorded and the next one runs."""
    spec = json.loads(Path((arguments or sys.argv[1:])[0]).read_text(encoding="utf-8"))
    if spec.get("collect"):
        collect(Path(spec["folder"]))
        return
    session = GroupSession(spec)
    join(session)
    # Rank 0's list, on all ranks.
    listed = session.gathered(spec["probes"])[0]
    probes = [(str(name), float(weight)) for name, weight in listed]
    for at, (name, weight) in enumerate(probes):
        left = max(0.0, float(spec["until"]) - time.time())
        share = weight / sum(w for _, w in probes[at:])
        with session.probing(name, time.time() + left * share):
            if session.going(0.5):
                run(session, name)
            else:
                session.skip(name, "no time left")
            session.barrier()
    session.synchronize()
    leave(session)


def run(session: GroupSession, name: str) -> None:
    """One probe; what it raises becomes a row."""
    begin = time.time()
    try:
        load(name)(session)
    except Exception as error:
        why = {"why": described(error), "label": session.label, "rank": session.rank}
        session.emit("skipped", probe=name, what=name, **why)
    finally:
        if session.rank == 0:
            about = {"probe": name, "label": session.label, "ranks": session.world}
            session.emit("probes", **about, seconds=time.time() - begin)


def join(session: GroupSession) -> None:
    """Joins the group's communicator; alone there is none."""
    if session.cuda:
        torch.cuda.set_device(session.local_rank)
    if session.world == 1:
        return

    alone = [name for name, _ in session.spec["probes"]] == ["training"]
    wait = PATIENCE if alone else max(PATIENCE, session.left())
    patience = datetime.timedelta(seconds=wait)
    extra = {"device_id": session.device} if session.cuda else {}
    dist.init_process_group(
        "nccl" if session.cuda else "gloo", timeout=patience, **extra
    )
    session.hosts = dist.new_group(
        backend="gloo",
        timeout=datetime.timedelta(seconds=max(wait, session.left() + 60)),
    )


def leave(session: GroupSession) -> None:
    if session.world > 1:
        dist.destroy_process_group()
    sys.stdout.flush()
    # Teardown of CUDA contexts costs seconds and has nothing left to do.
    os._exit(0)


def collect(folder: Path) -> None:
    """Brings the rows of torchrun's processes to rank 0 by a gather over gloo: no shared disk is needed."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    by_rank: list[Any] | None = [None] * dist.get_world_size() if rank == 0 else None
    dist.gather_object({} if rank == 0 else _files(folder, rank), by_rank)
    for files in by_rank or ():
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    dist.destroy_process_group()


def _files(folder: Path, rank: int) -> dict[str, bytes]:
    """What this rank wrote, by its path in the folder; traces only as far as they are small."""
    here, files = folder / f"rank{rank:05d}", dict[str, bytes]()
    left = LARGEST // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    for path in sorted(p for p in here.rglob("*") if p.is_file()):
        if (left := left - path.stat().st_size) < 0:
            break
        files[str(path.relative_to(folder))] = path.read_bytes()
    return files


if __name__ == "__main__":
    main()
