"""Files of Megatron-LM's arguments as text: shell scripts and YAML -> words by argument."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping

from prestep.sim.errors import InputError
from prestep.workloads.substitution import (
    ALTOGETHER,
    EXPECTED,
    LONGEST,
    Bounded,
    substituted,
)

MOST_LAYERS = 10_000  # of any model (a guess)
ENTRY = r"\s*(?:-\s+)?['\"]?(?P<dashes>-{0,2})(?P<name>[A-Za-z][\w-]*)['\"]?\s*:\s*(?P<value>.*)$"
SEPARATORS = ("&&", "|", ";", "\\")
BRACKETS = ("(", ")")
ASSIGNED = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=([^\s()]+)\s*;?\s*$")
# What stands in for an unset variable ends before another bracket opens, so that open ones are looked at once.
VARIABLE = re.compile(r"\$(?:\{(\w+)(:-(?:[^}$]|\$(?!\{))*)?\}|(\w+))")


def read_yaml(text: str) -> dict[str, list[str]]:
    """Lines ``--name: value`` or ``name: value``; names in capitals are variables or headings."""
    given: dict[str, list[str]] = {}
    for line in text.splitlines():
        entry = re.match(ENTRY, line.split(" #")[0])
        if not entry or entry["name"].isupper():
            continue
        value = entry["value"].strip()
        if not value and not entry["dashes"]:
            continue
        given[_argument(entry["name"])] = _yaml_words(value.strip("'\""))
    return given


def _argument(name: str) -> str:
    """A name as the command line writes it."""
    return name.replace("_", "-")


def _yaml_words(value: str) -> list[str]:
    """A switch that is on has no value."""
    return [] if value.lower() in ("", "true") else value.split()


def read_shell(text: str, where: str) -> dict[str, list[str]]:
    """Every ``--name value ...`` of a script, with its own variables put in.

    Raises
    ------
    InputError
        If its variables make more of each other than any script has.
    """
    try:
        words = _shell_words(text)
    except ValueError as error:
        raise InputError.of(where, "", str(error), EXPECTED) from None
    return _given(words)


def _given(words: list[str]) -> dict[str, list[str]]:
    """Words by the argument that they belong to."""
    given: dict[str, list[str]] = {}
    values: list[str] | None = None  # of the argument that words belong to
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, _, value = word[2:].partition("=")
            values = given[_argument(name)] = [value] if value else []
        elif _ends_arguments(word) or (word == ")" and _closed(values)):
            values = None
        elif values is not None and (values or word not in BRACKETS):
            values.append(word)
    return {name: _without_brackets(values) for name, values in given.items()}


def _closed(values: list[str] | None) -> bool:
    """Whether no bracket is open among an argument's words: the next one closes the array of arguments."""
    return values is None or values.count("(") <= values.count(")")


def _ends_arguments(word: str) -> bool:
    """An assignment, the end of a command, or a variable that the script does not set."""
    return "=" in word or word in SEPARATORS or word.startswith("$")


def _shell_words(text: str) -> list[str]:
    """Words of a script without its comments, with its own variables put in; brackets are words of their own."""
    lines = re.sub(r"\\\s*\n", " ", text)
    lines = "\n".join(re.sub(r"(^|\s)#.*$", "", line) for line in lines.splitlines())
    lines, variables = _taken(lines)
    script = _put_in(lines, variables, ALTOGETHER).replace("\n", " ; ")
    try:
        words = shlex.split(script.replace("(", " ( ").replace(")", " ) "))
    except ValueError:
        words = script.replace('"', " ").replace("'", " ").split()
    # What a variable of arguments begins with is the first of them: args="--bf16 ...".
    return [
        re.sub(r"^\w+\+?=(?=--\w)", "", part) for word in words for part in word.split()
    ]


def _taken(lines: str) -> tuple[str, Mapping[str, str]]:
    """A script without the branches that its own variables rule out, and these variables.

    Of an unknown condition all branches stay.
    """
    kept: list[str] = []
    variables, branches = Bounded(), _Branches()
    for line in lines.splitlines():
        words = line.strip()
        if re.match(r"if\b", words):
            head = _put_in(words, variables)
            branches.begin(_holds(head))
        elif re.match(r"elif\b", words):
            branches.turn(lambda taken: None if taken is not True else False)
        elif re.match(r"else\b", words):
            branches.turn(lambda taken: None if taken is None else not taken)
        elif re.match(r"fi\b", words) and branches.taken:
            branches.end()
        elif not branches.ruled_out:
            kept.append(line)
            _assign(line, variables)
    return "\n".join(kept), variables


class _Branches:
    """Of every `if` around a line: whether its branch is taken; None: nobody knows."""

    def __init__(self) -> None:
        self.taken: list[bool | None] = []
        self.ruled_out = 0  # branches around that are not taken

    def begin(self, holds: bool | None) -> None:
        """An `if`; within a branch that is not taken nobody asks."""
        self._put(None if self.ruled_out else holds)

    def turn(self, other: Callable[[bool | None], bool | None]) -> None:
        """Another branch of the innermost `if`, from whether the one before it was taken."""
        if self.taken:
            self._put(other(self.end()))

    def end(self) -> bool | None:
        """Ends the innermost `if`."""
        taken = self.taken.pop()
        self.ruled_out -= taken is False
        return taken

    def _put(self, taken: bool | None) -> None:
        self.taken.append(taken)
        self.ruled_out += taken is False


def _holds(head: str) -> bool | None:
    """Whether `if [ a = b ]` holds, of two words that are written out; None: nobody knows."""
    pattern = r"if\s+\[{1,2}\s+(\S+)\s+(==?|!=|-eq|-ne)\s+(\S+)\s+\]{1,2}\s*(?:;.*)?"
    found = re.fullmatch(pattern, head)
    if found is None or "$" in found[1] + found[3]:
        return None
    same = found[1].strip("\"'") == found[3].strip("\"'")
    return same if found[2] in ("=", "==", "-eq") else not same


def _assign(line: str, variables: Bounded) -> None:
    """Keeps the simple variable that a line sets, if it sets one; it may use those before it."""
    if found := ASSIGNED.match(line):
        variables[found[1]] = _put_in(found[2].strip("\"'"), variables)


def _without_brackets(values: list[str]) -> list[str]:
    """A closing bracket of an array of arguments is not a value."""
    while values and values[-1] == ")" and values.count(")") > values.count("("):
        values = values[:-1]
    return values


def _put_in(text: str, variables: Mapping[str, str], most: int = LONGEST) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        return variables.get(name, found[2][2:] if found[2] else found[0])

    return substituted(VARIABLE, value, text, most)


def repeated(text: str) -> list[int]:
    """Whole numbers in lists that are repeated and joined: ([0,4]+[128,4]*20)."""
    found: list[int] = []
    for inner, times in re.findall(r"\[([\d,\s]*)\](?:\s*\*\s*(\d{1,9}))?", text):
        numbers = [int(n[:9]) for n in re.findall(r"\d+", inner)]
        # More layers than any model has are no list of layers.
        found += numbers * min(MOST_LAYERS, int(times or 1))
    return found


def listed(text: str) -> list[int]:
    """The same of layers that have something or not: ([0]*3+[1]*58)."""
    layers = repeated(text)
    return layers if set(layers) <= {0, 1} else []
