"""How long a newcomer's first question takes: from a clone to what twice the spine does to 512 GPUs.

    python -m lab.bench.first_hour

This checkout is cloned into an empty folder, where nothing is but Python and git; `make demo` makes the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What README and its links have a newcomer type, with a job of their own.
COMMANDS = (
    "make demo",
    "prestep whatif examples/oversubscribed-spine.toml --set spine.bandwidth=2x",
    "prestep init --model llama3-70b --gpu h100 --gpus 512 -o job.toml",
    "prestep run job.toml",
    "prestep whatif job.toml --set spine.bandwidth=2x",
    "prestep run job.toml --report job.html",
)
# What is answered to questions: the values that they suggest.
ENTER = 5 * "\n"


def seconds(command: str, folder: Path) -> float:
    """Of a command in the clone, with its environment first on the path; what fails ends the measurement."""
    path = f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    bare = {
        key: value for key, value in os.environ.items() if not key.startswith("PYTHON")
    }
    start = time.perf_counter()
    done = subprocess.run(
        command.split(),
        cwd=folder,
        env={**bare, "PATH": path},
        input=ENTER,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{command}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as there:
        folder, total = Path(there) / "prestep", 0.0
        for command in (f"git clone -q {ROOT} {folder}", *COMMANDS):
            spent = seconds(command, folder if folder.exists() else Path(there))
            total += spent
            print(
                f"{spent:6.1f} s  {command.replace(str(ROOT), 'prestep')}", flush=True
            )
        print(f"{total:6.1f} s  in all")


if __name__ == "__main__":
    main()
