"""What a measurement is told: options, and the machine as the controller sees it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from prestep.sim import plugins
from prestep.sim.errors import InputError, Mistake, unknown

PROBES = "prestep.validation.measure.probes"
LEAST_MINUTES = 0.05
# Asked of a process of its own: the controller must not touch CUDA, and may have no PyTorch.
_LOOK = """
import json, sys
found = {"torch": None, "gpus": [], "cuda": None, "nccl": None, "cudnn": None}
try:
    import torch
    found["torch"] = torch.__version__
    found["cuda"] = torch.version.cuda
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        found["gpus"].append({"name": p.name, "sms": p.multi_processor_count, "memory": p.total_memory,
                              "l2": getattr(p, "L2_cache_size", None), "capability": [p.major, p.minor]})
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version())) if found["gpus"] else None
    found["cudnn"] = torch.backends.cudnn.version() if found["gpus"] else None
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}"[:300]
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Options:
    """The command's options.

    Attributes
    ----------
    output : Path
        The zip file to write.
    minutes : float
        Time for everything, shared among the stages.
    gpus : int or None
        GPUs of this host to use; None: all. Under torchrun its ranks are used.
    only, without : tuple of str
        Probes to run, or to leave out.
    cases : Path or None
        Training cases to run in place of the usual ones.
    nvls : bool
        Whether NCCL may use NVLink multicast.
    rehearse : bool
        Tiny sizes on CPUs: tries the whole command, measures nothing.
    size_limit : float or None
        Bytes that the zip file may have; traces beyond are left out, and said so.
    """

    output: Path
    minutes: float = 5.0
    gpus: int | None = None
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    cases: Path | None = None
    nvls: bool = True
    rehearse: bool = False
    force: bool = False
    size_limit: float | None = None
    folder: Path | None = None

    def checked(self) -> Options:
        """Itself.

        Raises
        ------
        InputError
            With every option that is wrong.
        """
        mistakes = [*self._wrong_numbers(), *self._wrong_files()]
        InputError.check(mistakes)
        return self

    def _wrong_numbers(self) -> Iterator[Mistake]:
        probes, where = names(), "command line"
        for option, chosen in (("--only", self.only), ("--without", self.without)):
            for name in chosen:
                if name not in probes:
                    yield unknown(where, option, name, probes)
        if not LEAST_MINUTES <= self.minutes <= 24 * 60:
            expected = f"{LEAST_MINUTES} to 1440"
            yield Mistake(where, "--minutes", f"{self.minutes:g}", expected)
        if self.gpus is not None and self.gpus < 1:
            yield Mistake(where, "--gpus", str(self.gpus), "at least 1")

    def _wrong_files(self) -> Iterator[Mistake]:
        output = str(self.output)
        if self.output.exists() and not self.force:
            yield Mistake(output, "", "a file", "a new one", "--force replaces it")
        if not self.output.resolve().parent.is_dir():
            yield Mistake(output, "", "no such folder", "a folder that is there")
        if self.cases is not None and not self.cases.is_file():
            expected = "training cases (JSON, or JSON lines)"
            yield Mistake(str(self.cases), "", "no such file", expected)

    def chosen(self) -> tuple[str, ...]:
        """Probes that are to run."""
        return tuple(
            n
            for n in names()
            if (not self.only or n in self.only) and n not in self.without
        )

    def to_json(self) -> dict[str, Any]:
        """Values for the manifest; no path of the machine but names of files."""
        options = asdict(self) | {
            "output": self.output.name,
            "cases": self.cases.name if self.cases else None,
        }
        options.pop("folder")
        return options


@dataclass(frozen=True)
class Place:
    """Where a measurement runs.

    `rank` and `world` count processes of the job (torchrun), or are 0 and the number of GPUs used alone.
    """

    gpus: tuple[Mapping[str, Any], ...] = ()
    torch: str | None = None
    nccl: str | None = None
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    torchrun: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        return max(1, self.world // max(1, self.local_world))

    @property
    def model(self) -> str:
        """Name of the GPUs; "" without any."""
        return str(self.gpus[0]["name"]) if self.gpus else ""


def names() -> list[str]:
    """All probes."""
    return list(plugins.discover(PROBES))


def look(options: Options, env: Mapping[str, str] = os.environ) -> Place:
    """What there is: GPUs, PyTorch, and this process's place in a job."""
    machine = _asked()
    gpus = tuple(machine.get("gpus", ()))
    if options.rehearse:
        gpus = ()
    place = Place(gpus, machine.get("torch"), machine.get("nccl"), about=machine)
    if "RANK" in env and "WORLD_SIZE" in env and "MASTER_ADDR" in env:
        rank, world, local, local_world = _ranks(env)
        here = replace(place, local_rank=local, local_world=local_world)
        return replace(here, rank=rank, world=world, torchrun=True)
    count = options.gpus or (2 if options.rehearse else max(1, len(gpus)))
    if gpus and count > len(gpus):
        expected = f"at most {len(gpus)}, which this host has"
        raise InputError.of("command line", "--gpus", str(count), expected)
    return replace(place, gpus=gpus[:count], world=count, local_world=count)


def _ranks(env: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Rank and world of a process of torchrun, and both on this host."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    values = [
        env.get(name, env[other])
        for name, other in zip(names, ("RANK", "WORLD_SIZE") * 2, strict=True)
    ]
    wrong = [
        (name, value)
        for name, value in zip(names, values, strict=True)
        if not value.isdigit()
    ]
    if wrong:
        raise InputError(
            Mistake("environment", name, f'"{value}"', "a number, as torchrun sets it")
            for name, value in wrong
        )
    rank, world, local, local_world = map(int, values)
    if rank >= world or local >= local_world or local_world > world:
        expected = "LOCAL_RANK < LOCAL_WORLD_SIZE <= WORLD_SIZE, RANK < WORLD_SIZE"
        raise InputError.of("environment", "RANK", ", ".join(values), expected)
    return rank, world, local, local_world


def _asked() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _LOOK],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return (
        dict(json.loads(lines[-1])) if lines else {"error": done.stderr.strip()[-300:]}
    )


def split(text: str) -> tuple[str, ...]:
    """Names by comma or space."""
    return tuple(word.replace("-", "_") for word in re.split(r"[,\s]+", text) if word)
