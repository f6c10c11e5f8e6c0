"""Files of recipes as flat keys with the line of each: TOML, YAML, JSON; nothing in them is executed or followed."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from prestep.sim import files, yaml_text
from prestep.sim.errors import InputError

#: Recipes are pages, not data: larger files are something else.
LARGEST = 4 * 2**20
#: Values of a document. Anchors of YAML can repeat each other into more than fits in memory.
MOST_VALUES = 20_000
EXPECTED = "a recipe (YAML, TOML, JSON, a shell script of arguments or exports, a Python recipe)"


class Entry(NamedTuple):
    """A value of a recipe and its line; 0 where the format does not tell it.

    `file` is where it stands if that is another file than the document's own.
    """

    value: Any
    line: int = 0
    file: str = ""


@dataclass(frozen=True)
class Document:
    """A recipe's file: its values by dotted key.

    Attributes
    ----------
    path : Path
        The file.
    kind : str
        How it is written: "toml", "yaml", "json", "shell" or "python".
    entries : mapping
        Values by dotted key; a list is a value.
    text : str
        The whole file.
    part : str
        Which of its functions is meant; "": the file decides.
    """

    path: Path
    kind: str
    entries: Mapping[str, Entry]
    text: str = ""
    part: str = ""

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        entry = self.entries.get(key)
        return default if entry is None or entry.value is None else entry.value

    def place(self, key: str) -> str:
        """File and line of a key."""
        entry = self.entries.get(key)
        line = f":{entry.line}" if entry is not None and entry.line else ""
        file = entry.file if entry is not None and entry.file else self.path
        return f"{file}{line}"

    def ended(self, *names: str) -> tuple[str, Any]:
        """The last key that ends with one of these names and has a value, and that value; "" and None for none."""
        for key, entry in reversed(list(self.entries.items())):
            if key.rpartition(".")[2] in names and entry.value is not None:
                return key, entry.value
        return "", None

    def sections(self) -> set[str]:
        """First parts of all keys."""
        return {key.partition(".")[0] for key in self.entries}


def text_of(path: Path) -> str:
    """The text of a recipe's file.

    Raises
    ------
    InputError
        If it cannot be read, is no text, or is larger than any recipe.
    """
    return files.read_text(path, EXPECTED, LARGEST)


def flat(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values of nested tables by dotted key; an empty table is None."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", None if value == {} else value


def read_toml(path: Path, text: str) -> Document:
    """A TOML file.

    Raises
    ------
    InputError
        If it is none.
    """
    try:
        return of_tables(path, files.toml(text), text)
    except ValueError as error:
        _fail(path, str(error), "TOML")


def of_tables(path: Path, tables: Mapping[str, Any], text: str = "") -> Document:
    """Tables of a TOML file that is read already."""
    return Document(path, "toml", _entries(path, tables), text)


def read_json(path: Path, text: str) -> Document:
    """A JSON file.

    Raises
    ------
    InputError
        If it is none, or no object.
    """
    try:
        value = files.json_of(text)
    except ValueError as error:
        _fail(path, str(error), "JSON")
    if not isinstance(value, Mapping):
        _fail(path, f"a {type(value).__name__}", "an object with keys")
    return Document(path, "json", _entries(path, value), text)


def _entries(path: Path, tree: Mapping[str, Any]) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for key, value in flat(tree):
        if len(entries) >= MOST_VALUES:
            _fail(path, f"more than {MOST_VALUES} values", EXPECTED)
        entries[key] = Entry(value)
    return entries


def read_yaml(path: Path, text: str) -> Document:
    """A YAML file, each value with its line.

    Raises
    ------
    InputError
        If it is none, no mapping, or has tags that would make objects.
    """
    import yaml  # most scenarios are TOML

    try:
        document = yaml_text.Document(text, MOST_VALUES)
        node = document.root
        if not isinstance(node, yaml.MappingNode):
            _fail(path, "no keys", "YAML with keys")
        return Document(path, "yaml", dict(_nodes(document, node, "")), text)
    except RecursionError:
        _fail(path, files.DEEP, "YAML")
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        _fail(f"{path}{line}", error.problem or "no YAML", "YAML")
    except (yaml.YAMLError, ValueError) as error:
        _fail(path, str(error).partition("\n")[0], "YAML")


def changed(document: Document, values: Mapping[str, str]) -> Document:
    """A document with other values of its own keys, which are written as in YAML, as launchers take them.

    Raises
    ------
    InputError
        Of a script, whose arguments are no keys, and for values that are no YAML.

    Examples
    --------
    >>> made = changed(Document(Path("a.yaml"), "yaml", {}), {"model.tp": "2"})
    >>> made.get("model.tp")
    2
    """
    if document.kind == "shell" and values:
        key, text = next(iter(values.items()))
        expected = "a key of a configuration; arguments of a script are its own"
        raise InputError.of(str(document.path), key, text, expected)
    made = [f"{json.dumps(key)}: {text}" for key, text in values.items()]
    if not made:
        return document
    entries = {
        key: Entry(entry.value, file="the command line")
        for key, entry in read_yaml(document.path, "\n".join(made)).entries.items()
    }
    return replace(document, entries={**document.entries, **entries})


def _nodes(
    document: yaml_text.Document, node: Any, prefix: str
) -> Iterator[tuple[str, Entry]]:
    """Values under a mapping's node, by dotted key."""
    import yaml

    document.merged(node)
    for name, value in node.value:
        key = f"{prefix}{document.value(name)}"
        line = value.start_mark.line + 1
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _nodes(document, value, f"{key}.")
        elif isinstance(value, yaml.MappingNode):
            yield key, Entry(None, line)
        else:
            yield key, Entry(document.value(value), line)


def _fail(where: object, found: str, expected: str) -> NoReturn:
    raise InputError.of(str(where), "", found, expected)


def document_beside(path: Path, name: str) -> Document | None:
    """A YAML file that another names, if it lies beside it; names with folders in them are not followed."""
    beside = path.parent / Path(name).name
    if not name or not beside.is_file() or beside.resolve() == path.resolve():
        return None
    return read_yaml(beside, text_of(beside))


#: Folders above a recipe's in which a file that it names may lie: the checkout's.
HIGHEST = 8


def beneath(path: Path, name: str) -> Path | None:
    """A file that a recipe names: beside it, or by its path from one of the folders above, as in a checkout."""
    wanted, folders = Path(name), list(path.absolute().parents)[:HIGHEST]
    places = [folders[0] / wanted.name]
    if len(wanted.parts) > 1 and not wanted.is_absolute() and ".." not in wanted.parts:
        places += [folder / wanted for folder in folders]
    return next((file for file in places if _is_file(file)), None)


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:
        return False


def functions_of(path: Path, text: str) -> dict[str, ast.FunctionDef]:
    """The functions of a file by name.

    Raises InputError if it is no Python.
    """
    return {
        node.name: node
        for node in module_of(path, text).body
        if isinstance(node, ast.FunctionDef)
    }


@functools.lru_cache(maxsize=256)
def module_of(path: Path, text: str) -> ast.Module:
    try:
        module = ast.parse(text)
        constants = (n.value for n in ast.walk(module) if isinstance(n, ast.Constant))
        files.check_numbers(list(constants))
        return module
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        found = getattr(error, "msg", None) or str(error)
        raise InputError.of(where, "", found, "Python") from None
    except (RecursionError, MemoryError):
        raise InputError.of(str(path), "", files.DEEP, "Python") from None


@functools.lru_cache(maxsize=256)
def imported_by(path: Path, text: str) -> dict[str, Source]:
    """What a file imports from others by the names that it has there, in functions too."""
    return {
        alias.asname or alias.name: Source(node.module or "", node.level, alias.name)
        for node in ast.walk(module_of(path, text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


#: Folders above a file in which a module's folder may lie.
HIGHEST_FOLDER = 12


class Source(NamedTuple):
    """What `from module import name` says: `level` is the number of dots before the module."""

    module: str
    level: int
    name: str


def file_of(path: Path, source: Source) -> Path | None:
    """The file of a module that another imports, if it lies in the same checkout."""
    return next(
        (file for file in _places(path.absolute(), source) if _is_file(file)), None
    )


def _places(path: Path, source: Source) -> Iterator[Path]:
    """Where it may lie: beside the file that imports it, or below one of the folders above."""
    parents = list(path.parents)
    level = source.level
    roots = parents[level - 1 : level] if level else parents[:HIGHEST_FOLDER]
    parts = source.module.split(".") if source.module else []
    for root in roots:
        folder = root.joinpath(*parts)
        if parts:
            yield folder.with_suffix(".py")
        yield folder / "__init__.py"
