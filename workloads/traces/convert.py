"""Recorded runs written in other formats: Chakra execution traces, Kineto's Chrome JSON, and the table itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from prestep.sim.errors import InputError
from prestep.workloads.traces.readers.chakra import GROUPS
from prestep.workloads.traces.replay import assemble
from prestep.workloads.traces.schema import Recording
from prestep.workloads.traces.writers import chakra, kineto

FORMATS = {
    "chakra": (".et",),
    "kineto": (".json", ".json.gz"),
    "table": (".parquet", ".arrow"),
}


def format_for(output: Path, asked: str = "") -> str:
    """The format asked for, or that of the file's ending.

    Raises
    ------
    InputError
        If neither says one.
    """
    for name, endings in FORMATS.items():
        if asked == name or (not asked and str(output).endswith(endings)):
            return name
    endings = tuple(e for listed in FORMATS.values() for e in listed)
    raise InputError.of(
        str(output), "", "an ending of no format", " or ".join(endings), "or say --to"
    )


def convert(recordings: Sequence[Recording], output: Path, to: str = "") -> list[Path]:
    """Writes the recordings of a run; the files written.

    Raises
    ------
    InputError
        If the files cannot be written.
    """
    kind = format_for(output, to)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if kind == "chakra":
            groups = output.with_name(f"{_stem(output)}{GROUPS}")
            return chakra.write(
                assemble(recordings), lambda rank: _of_rank(output, rank), groups
            )
        if kind == "kineto":
            return _kineto(recordings, output)
        _table(recordings, output)
    except OSError as error:
        raise InputError.of(
            str(output), "", str(error.strerror), "a path that can be written"
        ) from None
    return [output]


def _ending(output: Path) -> str:
    endings = sorted(
        (e for listed in FORMATS.values() for e in listed), key=len, reverse=True
    )
    return next((e for e in endings if output.name.endswith(e)), "")


def _stem(output: Path) -> str:
    return output.name.removesuffix(_ending(output))


def _of_rank(output: Path, rank: int) -> Path:
    return output.with_name(
        f"{_stem(output).removesuffix(f'.{rank}')}.{rank}{_ending(output) or '.et'}"
    )


def _kineto(recordings: Sequence[Recording], output: Path) -> list[Path]:
    """A file, or one a rank if there are several."""
    written = []
    for recording in recordings:
        several = len(recordings) > 1
        path = _of_rank(output, recording.rank) if several else output
        kineto.write(recording, path)
        written.append(path)
    return written


def _table(recordings: Sequence[Recording], output: Path) -> None:
    """The table itself, of all ranks: Parquet or an Arrow file, by the ending."""
    table = pa.concat_tables(
        [r.spans for r in recordings], promote_options="default"
    ).unify_dictionaries()
    with output.open("wb") as file:
        if output.suffix == ".parquet":
            pyarrow.parquet.write_table(table, file)
            return
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
