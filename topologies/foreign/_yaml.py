"""YAML and JSON documents as plain values, with errors that name the line."""

from __future__ import annotations

from typing import Any

from prestep.sim import files, yaml_text
from prestep.topologies.files.importers._text import Source


def parse(source: Source, text: str) -> Any:
    """The value of a document: dicts, lists, texts, numbers, booleans and None; JSON is read as such.

    Raises
    ------
    InputError
        For what is neither.
    """
    if text.lstrip().startswith("{"):
        try:
            return files.json_of(text)
        except ValueError as error:
            source.fail("", f"no JSON ({error})", "JSON or YAML")
    import yaml

    try:
        return yaml_text.value_of(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        source.fail(f"line {line}", error.problem or "no YAML", "YAML")
    except (yaml.YAMLError, ValueError) as error:
        source.fail("", str(error), "YAML")
