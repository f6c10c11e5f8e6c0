"""What all importers share: reading text, numbers that must be positive, and notes on what was assumed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake, did_you_mean
from prestep.topologies.core.quantity import Quantity, number_of, shown
from prestep.topologies.fabric import Fabric
from prestep.topologies.files.host_models import HostModel

MOST = 2**20  # of anything that a file counts


def text_of(path: str | Path) -> str:
    """The text of a file, unpacked when it ends in .gz; raises InputError that names the file."""
    try:
        data = files.read_bytes(path)
        return (
            files.unpacked(path, data) if str(path).endswith(".gz") else data
        ).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError.of(
            str(path), "", "bytes that are no text", "a text file in UTF-8"
        ) from None


class Source:
    """The file that is being read: its errors, and the notes that end up in the facts of the cluster."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._notes: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._host: HostModel | None = None

    @property
    def title(self) -> str:
        """Name of the cluster: the file's, without its suffixes."""
        return self.path.name.partition(".")[0] or "imported"

    def fail(
        self, element: str, found: object, expected: str, hint: str = ""
    ) -> NoReturn:
        raise InputError.of(str(self.path), element, str(found), expected, hint)

    def positive(
        self, element: str, value: object, expected: str = "a number above 0"
    ) -> float:
        """`value` as a number; anything but a finite number above 0 is an error that names the element."""
        number = number_of(value)
        if not (math.isfinite(number) and number > 0):
            self.fail(element, shown(value), expected)
        return number

    def at_least_0(self, element: str, value: object, expected: str) -> float:
        """`value` as a finite number that may be 0, or an error that names the element."""
        number = number_of(value)
        if not (math.isfinite(number) and number >= 0):
            self.fail(element, shown(value), expected)
        return number

    def whole(self, element: str, value: object) -> int:
        """`value` as a whole number of at least 1."""
        number = self.positive(element, value, "a whole number of at least 1")
        if number != int(number):
            self.fail(element, shown(value), "a whole number of at least 1")
        if number > MOST:
            self.fail(
                element, shown(value), f"at most {MOST:,}: more is a slip of the pen"
            )
        return int(number)

    def text(self, element: str, value: object, expected: str) -> str:
        """`value` as the text that names something: a text, or a whole number in digits; anything else is an error."""
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str) or not value:
            self.fail(element, shown(value), expected)
        return value

    def mapping(self, element: str, value: object, expected: str) -> dict[str, Any]:
        """`value` as a mapping whose keys are texts, or an error that names the element."""
        if not isinstance(value, dict) or not all(
            isinstance(key, str) for key in value
        ):
            self.fail(element, shown(value), expected)
        return value

    def known(self, element: str, name: str, table: Collection[str], what: str) -> None:
        """An error where `name` is none of those in `table`, with the one that was probably meant."""
        if name not in table:
            hint = did_you_mean(name, table)
            self.fail(element, f'"{name}"', f"{what} of the file", hint)

    def assumed(self, what: str, why: str) -> None:
        """Note something that the file does not say; the same thing again only counts."""
        self._note(f"assumed: {what}", why)

    def dropped(self, what: str, why: str) -> None:
        """Note something in the file that a cluster here does not hold."""
        self._note(f"dropped: {what}", why)

    def stands_on(self, model: HostModel) -> None:
        """The hosts of the file are of this kind: what it does not say of them is theirs."""
        self._host = model

    def _note(self, key: str, why: str) -> None:
        self._notes[key] = why
        self._counts[key] += 1

    def finish(self, fabric: Fabric, name: str = "") -> Fabric:
        """The cluster under a name (the file's unless given), its facts with the notes, which count elements."""
        facts = {
            key: Quantity(float(self._counts[key]), "guess", why)
            for key, why in self._notes.items()
        }
        if self._host is not None:
            fabric = self._host.applied(fabric)
        return fabric.with_facts(name or self.title, {**fabric.facts, **facts})

    def checked(self, error: InputError) -> InputError:
        """The same mistakes with the file as their place."""
        return InputError(
            Mistake(str(self.path), m.key, m.found, m.expected, m.hint)
            for m in error.mistakes
        )
