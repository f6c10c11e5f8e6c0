"""YAML that may be hostile: anchors that repeat each other, endless numbers, values that their tags do not fit."""

from __future__ import annotations

from functools import cache
from typing import Any

from prestep.sim.files import DEEP

#: Letters of a number: the longest that a float holds has 309 before its point.
LONGEST_NUMBER = 400
#: Values of a document, each as often as an anchor repeats it.
MOST_VALUES = 1_000_000
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class Document:
    """A document's nodes, of which no more values can be made than were asked for.

    Raises
    ------
    ValueError
        If it has more values than `most`, a node within itself, an endless number, or is nested too deeply.
    yaml.YAMLError
        If it is no YAML.
    """

    def __init__(self, text: str, most: int = MOST_VALUES) -> None:
        import yaml  # most scenarios are TOML

        try:
            self._loader = (_fast() or yaml.SafeLoader)(text)
            self.root = self._loader.get_single_node()
            if self.root is not None:
                _check_size(self.root, most, {})
        except RecursionError:
            raise ValueError(DEEP) from None
        except yaml.scanner.ScannerError as error:
            if "maximum nesting depth" in str(error.problem):  # libyaml's
                raise ValueError(DEEP) from None
            raise

    def merged(self, node: Any) -> None:
        """Puts the keys that a mapping merges (`<<`) into it."""
        self._loader.flatten_mapping(node)

    def value(self, node: Any) -> Any:
        """What a node stands for.

        Raises
        ------
        ValueError
            If its text is no value of its kind.
        """
        try:
            return self._loader.construct_object(node, deep=True)
        except RecursionError:
            raise ValueError(DEEP) from None
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError):
            # the parser takes for granted that a tag fits the text below it
            raise ValueError(_misfit(node)) from None


def value_of(text: str, most: int = MOST_VALUES) -> Any:
    """What a document says; None where it is empty.

    Raises
    ------
    ValueError, yaml.YAMLError
        As `Document`.
    """
    document = Document(text, most)
    return None if document.root is None else document.value(document.root)


@cache
def _fast() -> Any:
    """Reads events with libyaml, five times as fast, where PyYAML was built with it; None where it was not.

    Nodes are put together in Python all the same, which counts the depth of a document.
    """
    import yaml
    from yaml.composer import Composer

    if not yaml.__with_libyaml__:
        return None

    class Loader(Composer, yaml.CSafeLoader):
        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)

    return Loader


def _misfit(node: Any) -> str:
    """Which of the values under a node its tag does not fit."""
    import yaml

    left, loader = [node], yaml.SafeLoader("")
    while left:
        one = left.pop()
        if isinstance(one.value, list):
            for item in one.value:
                left.extend(item if isinstance(item, tuple) else (item,))
            continue
        try:
            loader.construct_object(one)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError):
            kind, line = one.tag.rpartition(":")[2], one.start_mark.line + 1
            return f"{one.value[:40]!r} (line {line}), which is no {kind}"
    return f"values that make no {node.tag.rpartition(':')[2]}"


def _check_size(node: Any, most: int, known: dict[int, int]) -> int:
    """Values of a node, those of an alias as often as it is named; each node is looked at once."""
    if id(node) in known:
        if not known[id(node)]:
            raise ValueError("an anchor within itself")
        return known[id(node)]
    known[id(node)] = 0
    if not isinstance(node.value, list):
        if node.tag in _NUMBERS and len(node.value) > LONGEST_NUMBER:
            raise ValueError(f"a number of more than {LONGEST_NUMBER} letters")
        size = 1
    else:
        size = 1
        for item in node.value:
            for part in item if isinstance(item, tuple) else (item,):
                size += _check_size(part, most, known)
                if size > most:
                    raise ValueError(f"more than {most} values")
    known[id(node)] = size
    return size
