"""What `prestep collective` does."""

from __future__ import annotations

from typing import Any

from prestep.sim.collectives import report
from prestep.sim.commands._pages import show_page
from prestep.sim.commands._shared import echo_json


def collective(explain: bool, json_: bool, **choices: Any) -> None:
    prediction = report.collective(explain=explain, **choices)
    if json_:
        echo_json(prediction.to_json())
    else:
        show_page(prediction.render())
