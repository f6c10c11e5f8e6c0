"""Opens Acme's plans (.plan): one line, "MODEL on GPUS of CLUSTER"."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prestep.sim.errors import InputError, Mistake

ENDINGS = (".plan",)
LINE = re.compile(r"(\S+) on (\d+) of (\S+)\s*")


def opens(path: Path) -> dict[str, Any] | None:
    """The tables of a scenario: data parallelism over all GPUs.

    Raises
    ------
    InputError
        For another line.
    """
    text = path.read_text(encoding="utf-8")
    plan = LINE.fullmatch(text)
    if plan is None:
        raise InputError(
            Mistake(str(path), "", repr(text[:40]), '"MODEL on GPUS of CLUSTER"')
        )
    model, gpus, cluster = plan.groups()
    return {
        "cluster": {"name": cluster, "gpus": int(gpus)},
        "model": {"name": model},
        "parallel": {"dp": int(gpus)},
    }
