"""What `prestep explain` does."""

from __future__ import annotations

from pathlib import Path

from prestep.sim.analysis import explain as explanation
from prestep.sim.commands._pages import show_page


def explain(result: Path) -> None:
    """A sentence a line; on a terminal folded to its width."""
    show_page(explanation.text(explanation.read(result)))
