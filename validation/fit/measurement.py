"""Reads what `prestep measure` wrote: one zip file, taken for what its manifest says and nothing else.

Member names are matched against those that the command writes, sizes are limited, and nothing is unpacked to a path
that the file chooses.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prestep.sim import files
from prestep.sim.errors import InputError, Mistake
from prestep.validation.formats.records import is_positive, read_lines, text_of
from prestep.validation.measure.bundle import FORMAT, MANIFEST, VERSION

EXPECTED = "a zip file that `prestep measure` wrote"
_MEMBER = re.compile(r"manifest\.json|[a-z_]{1,40}\.jsonl|(traces|nccl)/[\w.-]{1,200}")
MEMBERS = 4096
# Bytes of all members, unpacked; traces are packed once more inside.
LARGEST = 2 * 2**30
LARGEST_MANIFEST = 16 * 2**20  # bytes


@dataclass(frozen=True)
class Measured:
    """A measurement, unpacked.

    Attributes
    ----------
    name : str
        The file.
    about : mapping
        Its manifest.
    folder : Path
        Where its members are, for as long as it is open.
    """

    name: str
    about: Mapping[str, Any]
    folder: Path

    @property
    def model(self) -> str:
        """The GPUs, as their driver names them."""
        gpus = self.about.get("gpus") or [{}]
        return str(gpus[0].get("name", "")) if isinstance(gpus[0], Mapping) else ""

    @property
    def world(self) -> int:
        return int(self.about.get("world", 1))

    @property
    def when(self) -> str:
        return str(self.about.get("made", ""))[:10]

    def file(self, name: str) -> Path | None:
        """A member, if it is there."""
        path = self.folder / name
        return path if path.is_file() else None

    def rows(
        self, name: str, kind: str = "", numbers: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Rows of a file, of one kind if it has several; those without one of `numbers` are left out.

        Raises
        ------
        InputError
            With every line that is no JSON object, or where one of `numbers` is no number above 0.
        """
        rows: list[dict[str, Any]] = []

        def take(row: Any, where: str) -> None:
            if not isinstance(row, dict) or (kind and row.get("kind") != kind):
                return
            InputError.check(_wrong_numbers(row, numbers, where))
            if all(row.get(key) is not None for key in numbers):
                rows.append(row)

        path = self.file(f"{name}.jsonl")
        text = text_of(path) if path else ""
        read_lines(text, f"{self.name}: {name}.jsonl", take)
        return rows

    def traces(self) -> list[Path]:
        """Kineto traces, in order of their names."""
        return sorted((self.folder / "traces").glob("*.pt.trace.json.gz"))


def _wrong_numbers(
    row: Mapping[str, Any], numbers: Sequence[str], where: str
) -> list[Mistake]:
    """The `numbers` of a row that are there but are no number above 0."""
    values = {key: row[key] for key in numbers if row.get(key) is not None}
    return [
        Mistake(where, key, repr(value)[:60], "a number above 0")
        for key, value in values.items()
        if not is_positive(value)
    ]


def is_measured(path: Path) -> bool:
    """Whether a file is a zip file (what is in it, `opened` looks at)."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


@contextmanager
def opened(path: Path) -> Iterator[Measured]:
    """A measurement, unpacked for the time of the block.

    Raises
    ------
    InputError
        If it is no such file, is of a later version, a rehearsal, or larger than any measurement.
    """
    with TemporaryDirectory(prefix="prestep-") as name:
        folder = Path(name)
        try:
            with zipfile.ZipFile(path) as file:
                about = _manifest(path, file)
                _unpack(path, file, folder)
        except (
            OSError,
            EOFError,
            ValueError,
            RuntimeError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            hint = "a copy that was cut off? copy it again"
            mistake = Mistake(str(path), "", str(error), EXPECTED, hint)
            raise InputError(mistake) from None
        yield Measured(path.name, about, folder)


def _manifest(path: Path, file: zipfile.ZipFile) -> dict[str, Any]:
    """The manifest of a measurement that this version of prestep can read."""
    about = _manifest_object(path, file)
    if mistake := _unusable(str(path), about):
        raise InputError(mistake)
    return about


def _manifest_object(path: Path, file: zipfile.ZipFile) -> dict[str, Any]:
    """The manifest as JSON, if it is one of `prestep measure`."""
    where = str(path)
    if MANIFEST not in file.namelist():
        raise InputError.of(where, "", f"no {MANIFEST} in it", EXPECTED)
    if file.getinfo(MANIFEST).file_size > LARGEST_MANIFEST:
        raise InputError.of(where, MANIFEST, "more than 16 MiB", EXPECTED)
    try:
        about = files.json_of(file.read(MANIFEST))
    except ValueError as error:
        raise InputError.of(where, MANIFEST, str(error), "JSON") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        key = f"{MANIFEST}: format"
        raise InputError.of(where, key, repr(about)[:40], f'"{FORMAT}"')
    return about


def _unusable(where: str, about: Mapping[str, Any]) -> Mistake | None:
    """Why no table can be fitted to a measurement with this manifest."""
    if about.get("version") != VERSION:
        key, version = f"{MANIFEST}: version", repr(about.get("version"))
        hint = "written by another version of prestep: measure again with this one"
        return Mistake(where, key, version, str(VERSION), hint)
    if about.get("rehearsal"):
        hint = "its times mean nothing"
        return Mistake(where, "", "a rehearsal on CPUs", "a measurement", hint)
    if mistake := _mixed(where, about.get("gpus", [])):
        return mistake
    has_world = isinstance(about.get("world", 1), int)
    has_gpus = isinstance(about.get("gpus", []), list)
    if not (has_world and has_gpus):
        found = "world or gpus of another type"
        return Mistake(where, MANIFEST, found, "a number and a list")
    return None


def _mixed(where: str, gpus: Any) -> Mistake | None:
    """GPUs of several kinds: no table is that of all of them."""
    listed = gpus if isinstance(gpus, list) else []
    names = sorted({str(one.get("name")) for one in listed if isinstance(one, Mapping)})
    if len(names) < 2:
        return None
    hint = "measure each kind by itself: CUDA_VISIBLE_DEVICES chooses GPUs"
    return Mistake(where, "gpus", ", ".join(names), "GPUs of one kind", hint)


def _unpack(path: Path, file: zipfile.ZipFile, folder: Path) -> None:
    members = file.infolist()
    strange = [
        m.filename
        for m in members
        if not _MEMBER.fullmatch(m.filename) or ".." in m.filename
    ]
    if strange or len(members) > MEMBERS:
        found = repr(strange[0][:80]) if strange else f"{len(members)} members"
        raise InputError.of(str(path), "", found, "only what `prestep measure` writes")
    if sum(m.file_size for m in members) > LARGEST or any(
        m.file_size > files.LARGEST for m in members
    ):
        raise InputError.of(
            str(path), "", "more than any measurement unpacks to", EXPECTED
        )
    for part in ("traces", "nccl"):
        (folder / part).mkdir()
    for member in members:
        data = file.read(member)
        files.check_ratio(path, max(1, member.compress_size), len(data))
        (folder / member.filename).write_bytes(data)
