"""prestep from Python: `import prestep`.

>>> import prestep
>>> result = prestep.simulate("mlp-ddp4", {"training.micro_batch": 128})
>>> result.step_time > 0
True

Everything here is `sim.api`'s: docs/python.md has the list.
"""

from __future__ import annotations

from sim import __version__
from sim.api import (
    InputError,
    Prediction,
    PrestepError,
    Scenario,
    breakdown,
    collective,
    compare,
    load,
    load_cluster,
    names,
    replay,
    save,
    simulate,
    spans,
    sweep,
    tornado,
)

__all__ = [
    "InputError",
    "Prediction",
    "PrestepError",
    "Scenario",
    "__version__",
    "breakdown",
    "collective",
    "compare",
    "load",
    "load_cluster",
    "names",
    "replay",
    "save",
    "simulate",
    "spans",
    "sweep",
    "tornado",
]  # fmt: skip
