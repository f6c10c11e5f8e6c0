"""What the explorer's page is told: the prediction of the scenario with changes, as pieces of the report."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from prestep.sim.analysis.effects import step_time
from prestep.sim.analysis.prediction import Prediction
from prestep.sim.engine.execution import Run
from prestep.sim.errors import InputError, Mistake, PrestepError, unknown
from prestep.sim.explorer.knobs import Knob, grows, knobs, world
from prestep.sim.exporters import _words as words
from prestep.sim.exporters._html import sections, shares, timeline
from prestep.sim.markup import element, markup
from prestep.sim.planning.planned import Planned
from prestep.sim.predict import execute, reported
from prestep.sim.record.expected_error import with_expected_error
from prestep.sim.spec.jobs import refuse
from prestep.sim.spec.load import load_scenario
from prestep.sim.spec.rules.layout import runs_of_layers
from prestep.sim.spec.sections import Scenario
from prestep.sim.studies.whatif import Changes, Recent
from prestep.sim.units import format_duration

Answer = dict[str, Any]
MOST_KEPT = 64  # answers; the largest have half a megabyte
MOST_STEPS = 4096  # step times alone, of curves
MOST_RUN = (
    4  # steps with all that happened in them: what is said of one after its time alone
)
MOST_RUNS = 6_000  # layers that a step runs: more take a minute and a gigabyte
MOST_SAID = 80  # letters of a wrong value that a mistake repeats
HEADLINE = ("mistakes", "step_time", "verdict")
#: Pieces of the page by the sections of the report that they are, of a result and that of the scenario as it is.
PIECES: dict[str, Callable[[Prediction, Prediction], str]] = {
    "tiles": lambda result, base: sections.tiles(result),
    "step": lambda result, base: (
        shares.breakdown(result)
        if result is base
        else shares.compared([("before", base), ("with the changes", result)])
    ),
    "timeline": lambda result, base: timeline.timeline(result),
    "network": lambda result, base: sections.network(result),
    "memory": lambda result, base: sections.memory(result),
}


@dataclass(frozen=True)
class Explorer:
    """A scenario's file with changes of the command line; what is asked of it changes nothing in it."""

    path: Path
    overrides: tuple[str, ...] = ()

    @cached_property
    def scenario(self) -> Scenario:
        loaded = load_scenario(self.path, self.overrides)
        refuse(loaded, "explore; `prestep run` predicts several")
        return loaded

    @cached_property
    def changes(self) -> Changes:
        return Changes(self.scenario)

    @cached_property
    def base(self) -> Prediction:
        return self._reported(())

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        return knobs(self.scenario, self.changes.base.fabric, self.changes.base.model)

    @cached_property
    def _hosts(self) -> int:
        """GPUs of a host where the cluster scales, else 0."""
        fabric = self.changes.base.fabric
        return (
            len(fabric.gpus) // len(fabric.hosts) if grows(self.scenario, fabric) else 0
        )

    def sets(self, asked: Mapping[str, str]) -> tuple[str, ...]:
        """The `--set` items of what the page asks for.

        Raises
        ------
        InputError
            For what the page cannot ask (`check`): it changes nothing else, files least of all.
        """
        self.check(asked)
        made = [
            f"{key}={value}"
            for key, value in asked.items()
            if value != self._known[key].value
        ]
        return (*self._cluster(asked), *made)

    @cached_property
    def _known(self) -> dict[str, Knob]:
        """Controls that are asked for; `gpus` follows from the others."""
        return {knob.key: knob for knob in self.knobs if knob.key != "gpus"}

    def check(self, asked: Mapping[str, str]) -> None:
        """Refuse what the page cannot ask: its sliders bound the work that a question makes.

        Raises
        ------
        InputError
            For keys that are no control, and for values that a control does not offer.
        """
        known = self._known
        wrong = [
            unknown("explore", "", key, known, "one of the page's controls:")
            if key not in known
            else Mistake(
                "explore",
                key,
                f'"{value[:MOST_SAID]}"',
                f"a value of its control: {', '.join(known[key].values)}",
            )
            for key, value in asked.items()
            if key not in known or value not in known[key].values
        ]
        InputError.check(wrong)

    def _cluster(self, asked: Mapping[str, str]) -> list[str]:
        """As many hosts as the layout takes."""
        p, gpus = self.scenario.parallel, 1
        for axis in ("dp", "tp", "pp", "cp"):
            value = asked.get(f"parallel.{axis}", str(getattr(p, axis)))
            gpus *= (
                int(value) if value.isdecimal() and len(value) < 7 else 1
            )  # what is wrong is said by the reader
        if gpus == world(p):
            return []
        if not self._hosts:
            return (
                [f"cluster.gpus={gpus}"]
                if gpus < len(self.changes.base.fabric.gpus)
                else []
            )
        made = [f"cluster.hosts={max(1, -(-gpus // self._hosts))}"]
        return made + ([f"cluster.gpus={gpus}"] if gpus % self._hosts else [])

    def predicted(self, asked: Mapping[str, str]) -> Prediction:
        """The step as `prestep run` with the same `--set` predicts it."""
        sets = self.sets(asked)
        return self._reported(sets) if sets else self.base

    def _reported(self, sets: tuple[str, ...]) -> Prediction:
        """The prediction with these changes, and how far off its like were."""
        planned, run = self._executed(sets)
        changed = self._changed(sets)
        return with_expected_error(changed, planned, reported(planned, run))

    def _executed(self, sets: tuple[str, ...]) -> tuple[Planned, Run]:
        """The step with these changes, and how it ran; those of the last steps are kept."""

        def run() -> tuple[Planned, Run]:
            planned = self._planned(sets)
            return planned, execute(planned)

        return self._runs.of(sets, run)

    @cached_property
    def _runs(self) -> Recent[tuple[Planned, Run]]:
        return Recent(MOST_RUN)

    def _planned(self, sets: tuple[str, ...]) -> Planned:
        """The step with these changes, before it runs."""
        if not sets:
            return self.changes.base
        changed = self._changed(sets)
        self._short(changed)
        return self.changes.of(changed)

    def _changed(self, sets: tuple[str, ...]) -> Scenario:
        """The scenario with these changes."""
        every = [*self.overrides, *sets]
        return self._scenarios.of(sets, lambda: load_scenario(self.path, every))

    @cached_property
    def _scenarios(self) -> Recent[Scenario]:
        return Recent(MOST_RUN)

    def _short(self, changed: Scenario) -> None:
        """Refuse what takes minutes and gigabytes, unless the scenario itself is as large."""
        layers = max(1, self.changes.base.model.layers)
        runs, own = runs_of_layers(changed), runs_of_layers(self.scenario)
        if layers * runs > max(MOST_RUNS, layers * own):
            found = f"{runs} microbatches of {layers} layers"
            raise InputError.of(
                "explore",
                "training",
                found,
                f"at most {MOST_RUNS} layers in a step",
                "prestep run predicts larger ones",
            )

    @cached_property
    def _answers(self) -> dict[tuple[tuple[str, str], ...], Answer]:
        """The last answers: a slider goes back and forth."""
        return {}

    def answer(self, asked: Mapping[str, str]) -> Answer:
        """What the page shows: pieces of HTML, or what is wrong with the changes."""
        try:
            self.check(asked)
        except InputError as error:
            return {"mistakes": str(error)}  # and nothing is kept of it
        key = tuple(sorted(asked.items()))
        if key not in self._answers:
            self._answers[key] = self._answer(asked)
            if len(self._answers) > MOST_KEPT:
                del self._answers[next(iter(self._answers))]
        return self._answers[key]

    def _answer(self, asked: Mapping[str, str]) -> Answer:
        try:
            result = self.predicted(asked)
            sets = self.sets(asked)
        except PrestepError as error:
            return {"mistakes": str(error)}
        return {
            "title": page_title(result),
            "changes": list(sets),
            "shares": {name: spent for name, spent, _ in words.shares(result)},
            "base": self.base.step_time,
            "gpus": result.scenario["gpus"],
            "command": self._command(sets),
            **_headline(self.base.step_time, result.step_time),
            "pieces": {
                name: piece(result, self.base) for name, piece in PIECES.items()
            },
        }

    def step(self, asked: Mapping[str, str]) -> Answer:
        """The step time alone, which is said before the rest, and of which the curve over a slider is made."""
        key = tuple(sorted(asked.items()))
        if key in self._answers:
            found = self._answers[key]
            return {name: found[name] for name in HEADLINE if name in found}
        if key not in self._steps:
            self._steps[key] = self._step(asked)
            if len(self._steps) > MOST_STEPS:
                del self._steps[next(iter(self._steps))]
        return self._steps[key]

    @cached_property
    def _steps(self) -> dict[tuple[tuple[str, str], ...], Answer]:
        return {}

    def _step(self, asked: Mapping[str, str]) -> Answer:
        try:
            found = step_time(*self._executed(self.sets(asked)))
        except PrestepError as error:
            return {"mistakes": str(error)}
        return _headline(self.base.step_time, found)

    def _command(self, sets: tuple[str, ...]) -> str:
        items = [part for item in (*self.overrides, *sets) for part in ("--set", item)]
        return shlex.join(["prestep", "run", str(self.path), *items])


def _headline(before: float, after: float) -> Answer:
    """What is said of a step first (`HEADLINE`)."""
    return {"mistakes": "", "step_time": after, "verdict": verdict(before, after)}


def page_title(result: Prediction) -> str:
    """What is predicted, as the report names it."""
    return f"Explore {words.title(result)}"


def verdict(before: float, after: float) -> str:
    """The step beside that of the scenario as it is, as HTML."""
    ratio = before / after if after else 1.0
    if abs(ratio - 1) < 5e-5:
        said, colour = "as the scenario", "soft"
    elif ratio > 1:
        said, colour = f"{ratio:.3g}x as fast", "good"
    else:
        said, colour = f"{1 / ratio:.3g}x as long", "bad"
    return markup(
        element("b", format_duration(after), id="steptime"),
        " a step, ",
        element("b", said, style=f"color:var(--{colour})"),
        " ",
        element("span", f"({format_duration(before)})", class_="soft"),
    )


def once(query: Mapping[str, list[str]]) -> dict[str, str]:
    """Values of a query that says every key once.

    Raises
    ------
    InputError
        For a key that comes twice.
    """
    twice = [key for key, values in query.items() if len(values) != 1]
    if twice:
        raise InputError(
            [Mistake("explore", key, "several values", "one") for key in twice]
        )
    return {key: values[0] for key, values in query.items()}
