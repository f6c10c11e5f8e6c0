"""The explorer's page as HTML: controls beside the report's own pictures of the step."""

from __future__ import annotations

import json
from html import escape
from importlib import resources
from itertools import groupby

from prestep.sim import __version__
from prestep.sim.explorer.answers import PIECES, Explorer, page_title
from prestep.sim.explorer.knobs import Knob
from prestep.sim.markup import Markup, element, markup
from prestep.topologies.show import drawing

TITLES = {
    "step": "Where the step goes",
    "timeline": "Timeline",
    "network": "Network",
    "memory": "Memory",
}


def render(explorer: Explorer) -> str:
    """The page; its script asks the server that it came from, and no other."""
    title = escape(page_title(explorer.base))
    answer = explorer.answer({})
    pieces = element(
        "div",
        *(
            element(
                "section",
                element("h2", TITLES[name], id=f"{name}-title"),
                element("div", answer["pieces"][name], id=f"piece-{name}"),
                aria_labelledby=f"{name}-title",
            )
            for name in PIECES
            if name in TITLES
        ),
        class_="pieces",
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{title}</title><style>{_report('page.css')}{drawing.style()}{_own('explore.css')}</style></head>\n"
        f'<body><header><h1 id="title">{title}</h1>'
        '<nav><button type="button" id="theme" hidden>light or dark</button></nav>'
        f'</header><main class="explore"><form id="knobs" autocomplete="off">{_controls(explorer.knobs)}'
        '<button type="reset">as the scenario</button> <button type="button" id="pin" aria-pressed="false">pin</button>'
        '<p class="soft">The address carries the sliders: a link to it opens them. <em>Pin</em> keeps this step beside '
        "those that follow.</p></form>"
        f'<div id="answer" aria-live="polite"><div id="verdict">{answer["verdict"]}</div>'
        '<div id="waiting" class="soft" role="status"></div>'
        '<pre id="mistakes" role="alert" hidden></pre>'
        '<section id="pinned" aria-label="Pinned" hidden></section>'
        f'<div id="piece-tiles">{answer["pieces"]["tiles"]}</div>{pieces}'
        '<section><h2>As a command</h2><pre id="command" class="scroll" tabindex="0">'
        f"{escape(answer['command'])}</pre></section></div></main>\n"
        f"<footer>Predicted by prestep {escape(__version__)}; nothing is kept, nothing leaves this machine.</footer>\n"
        f"<script>{_report('page.js')}</script><script>{_own('explore.js')}</script></body></html>\n"
    )


def _controls(knobs: tuple[Knob, ...]) -> Markup:
    groups = groupby(knobs, key=lambda knob: knob.group)
    return markup(
        *(
            element("fieldset", element("legend", group), *map(_control, members))
            for group, members in groups
        )
    )


def _control(knob: Knob) -> Markup:
    """A slider over the positions of the values, or a list; the value itself stands beside it."""
    label = element("label", knob.label, for_=knob.key)
    if knob.choice:
        options = [
            element(
                "option", value, **({"selected": ""} if value == knob.value else {})
            )
            for value in knob.values
        ]
        choice = element("select", *options, id=knob.key, data_base=knob.value)
        return element("div", label, choice, class_="knob")
    slider = element(
        "input",
        type="range",
        id=knob.key,
        min=0,
        max=len(knob.values) - 1,
        value=knob.values.index(knob.value),
        data_values=json.dumps(knob.values),
        data_base=knob.value,
        aria_valuetext=knob.value,
    )
    shown = element("output", knob.value, for_=knob.key)
    curve = element("figure", class_="curve", hidden="")
    return element("div", label, shown, slider, curve, class_="knob")


def _report(name: str) -> str:
    return (resources.files("prestep.sim.exporters._html") / name).read_text(
        encoding="utf-8"
    )


def _own(name: str) -> str:
    return (resources.files("prestep.sim.explorer") / name).read_text(encoding="utf-8")
