"""Of the core's other commands: `collective`, `kernel`, `list`, `whatif`, `search`; commands.toml declares them."""

from __future__ import annotations

from prestep.sim.analysis.choices import Choice
from prestep.sim.collectives.nccl.tuner import Candidate
from prestep.sim.outputs.declarations import schemas_beside
from prestep.sim.outputs.run import DECLARED as OF_RUN

_DECLARED = schemas_beside(__file__, Candidate, Choice, **OF_RUN)
COLLECTIVE = _DECLARED["collective"]
KERNEL = _DECLARED["kernel"]
LIST = _DECLARED["list"]
SEARCH = _DECLARED["search"]
TOPOLOGY = _DECLARED["topology"]
WHATIF = _DECLARED["whatif"]
