"""YAML, TOML and Python that are made to do harm are refused, and what is no harm is read as the parser reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from prestep.sim import files, yaml_text
from prestep.sim.errors import InputError
from prestep.topologies.files.importers._text import Source
from prestep.topologies.foreign._yaml import parse
from prestep.workloads.arguments.files import read_shell
from prestep.workloads.recipes._documents import module_of, read_yaml
from prestep.workloads.recipes._shell import read_exports
from tests.sample import together

WIDE = "a: &a [" + "1, " * 9000 + "]\n" + "".join(f"k{n}: *a\n" for n in range(3000))
LAUGHS = "a: &a0 {x: 1}\n" + "".join(
    f"b{n}: &a{n + 1} {{k: *a{n}, l: *a{n}, m: *a{n}}}\n" for n in range(40)
)
MERGES = "a:\n- &a0 {x: 1, y: 2}\n" + "".join(
    f"- &a{n + 1} {{<<: [{', '.join([f'*a{n}'] * 10)}]}}\n" for n in range(12)
)
HOSTILE = {
    "an anchor in thousands of keys": (WIDE, "more than"),
    "anchors of anchors": (LAUGHS, "more than"),
    "merges of merges": (MERGES, "more than"),
    "an anchor within itself": ("a: &a {b: *a}", "within itself"),
    "a list within itself": ("a: &a [*a]", "within itself"),
    "deep": ("a: " + "[" * 3000, "nested too deeply"),
    "digits": ("a: " + "9" * 5000, "letters"),
    "hexadecimal digits": ("a: 0x" + "f" * 100_000, "letters"),
    "binary digits": ("a: 0b" + "1" * 100_000, "letters"),
    "base 60": ("a: " + ":".join(["1"] * 20_000), "letters"),
    "a truth that is none": ("a: !!bool x", "no bool"),
    "an integer that is none": ("a: !!int x", "no int"),
    "a number that is none": ("a: !!float x", "no float"),
    "a time that is none": ("a: !!timestamp x", "no timestamp"),
    "a day that is none": ("a: 2001-02-30", "no timestamp"),
}


@pytest.mark.parametrize("name", HOSTILE)
@together("recipe", [True, False])
def test_hostile_yaml_is_a_mistake_of_the_file(name: str, recipe: bool) -> None:
    """As a recipe and as a cluster: the file is named, with what was found."""
    text, told = HOSTILE[name]
    with pytest.raises(InputError, match=told) as caught:
        if recipe:
            read_yaml(Path("x.yaml"), text)
        else:
            parse(Source("x.yaml"), text)
    assert "x.yaml" in str(caught.value) and len(str(caught.value)) < 400


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(TREES)
def test_what_is_no_harm_is_read_as_the_parser_reads_it(tree: object) -> None:
    """Whatever is written is read back."""
    text = yaml.safe_dump(tree)
    assert yaml_text.value_of(text) == yaml.safe_load(text)


def test_anchors_and_merges_of_a_real_file_are_read() -> None:
    """A value by its anchor, and keys that are merged."""
    text = "a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: *a\n"
    assert yaml_text.value_of(text) == yaml.safe_load(text)
    found = read_yaml(Path("x.yaml"), text).entries
    assert {key: entry.value for key, entry in found.items()} == {
        "a.x": 1,
        "b.x": 1,
        "b.y": 2,
        "c.x": 1,
    }


@pytest.mark.parametrize("digits", [400, 100_000])
def test_an_endless_number_is_refused_in_toml_and_python(digits: int) -> None:
    """Python reads it in hexadecimal and would fail to write it in a message."""
    number = "0x" + "f" * digits
    with pytest.raises(ValueError, match="1400 bits"):
        files.toml(f"a = [{{b = {number}}}]")
    with pytest.raises(InputError, match="1400 bits"):
        module_of(Path("x.py"), f"a = f({number})")
    assert files.toml("a = 0xff")["a"] == 255


def test_endless_arithmetic_of_a_shell_stays_text(tmp_path: Path) -> None:
    """Numbers multiplied with themselves again and again, and one that is endless as it stands."""
    lines = ["A=$((0x" + "f" * 5000 + "))", "B0=$((10 * 10))"]
    lines += [f"B{n + 1}=$((B{n} * B{n}))" for n in range(40)]
    path = tmp_path / "config_DGXH100_1x8.sh"
    path.write_text("\n".join(f"export {line}" for line in lines))
    found = read_exports(path, path.read_text()).entries
    assert found["B1"].value == "10000"
    assert str(found["A"].value).startswith("$((")


def test_variables_that_double_each_other_are_refused(tmp_path: Path) -> None:
    """Forty lines would make a value of a million million letters."""
    lines = ["A0=aa", *(f"A{n + 1}=$A{n}$A{n}" for n in range(40))]
    with pytest.raises(InputError, match=r"x\.sh:17: found variables that make"):
        read_exports(tmp_path / "x.sh", "\n".join(lines))


@pytest.mark.parametrize(
    "text",
    [
        "A0=aa\n" + "\n".join(f"A{n + 1}=$A{n}$A{n}" for n in range(40)),
        "A=" + "a" * 90_000 + "\n" + "echo $A\n" * 40_000,
        "A=" + "a" * 90_000 + "\n" + "".join(f"B{n}=$A\n" for n in range(40_000)),
    ],
)
def test_arguments_whose_variables_double_each_other_are_refused(text: str) -> None:
    """In one value, in all values together, and in the text that uses them."""
    with pytest.raises(InputError, match=r"x\.sh: found variables that make"):
        read_shell(text, "x.sh")
