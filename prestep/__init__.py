"""prestep from Python: `import prestep`.

>>> import prestep
>>> result = prestep.simulate("mlp-ddp4", {"training.micro_batch": 128})
>>> result.step_time > 0
True

Everything here is `prestep.sim.api`'s, but for what extensions add under the entry point group `prestep.api`, such as
`replay`: docs/python.md has the list.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

#: The folder on the path that prestep is imported from: what other processes need to find it.
HOME = Path(__file__).resolve().parents[1]
# An installed prestep has its rooms inside this folder. In a checkout they lie beside it, where their readers look
# first.
if not Path(__file__).with_name("sim").is_dir():
    __path__.append(str(HOME))

from prestep.sim import __version__  # noqa: E402

if TYPE_CHECKING:
    from prestep.sim.api import (
        InputError,
        Prediction,
        PrestepError,
        Scenario,
        breakdown,
        collective,
        compare,
        from_graph,
        load,
        load_cluster,
        names,
        save,
        simulate,
        spans,
        sweep,
        to_graph,
        tornado,
    )
    from prestep.sim.replay.frame import replay as replay

__all__ = [
    "InputError",
    "Prediction",
    "PrestepError",
    "Scenario",
    "__version__",
    "breakdown",
    "collective",
    "compare",
    "from_graph",
    "load",
    "load_cluster",
    "names",
    "save",
    "simulate",
    "spans",
    "sweep",
    "to_graph",
    "tornado",
]


def __getattr__(name: str) -> Any:
    """Returns a name of the API, which is imported when one is asked for: the command line and programs under
    capture ask for none."""
    if name in __all__:
        place = f"prestep.sim.api:{name}"
    elif name.startswith("_") or not (place := _extensions().get(name, "")):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = place.partition(":")
    globals()[name] = value = getattr(importlib.import_module(module), attribute)
    return value


def _extensions() -> dict[str, str]:
    """Where functions are that extensions add, by name."""
    from prestep.sim.entry_points import entry_points  # few programs ask

    return {entry.name: entry.value for entry in entry_points("prestep.api")}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_extensions()})
