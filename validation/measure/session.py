"""What a probe is given: its place in the group, its time, and somewhere to write rows to."""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Session:
    """One process that measures; what needs PyTorch is in `prestep.validation.measure.group`.

    Attributes
    ----------
    rank, world, local_rank, local_world
        Place in the group.
    label
        Name of the setting it runs in.
    tiny
        Whether this is a rehearsal: smallest sizes, no meaning in the times.
    cuda
        Whether there is a GPU to use.
    """

    def __init__(
        self, spec: Mapping[str, Any], env: Mapping[str, str] = os.environ
    ) -> None:
        self.spec = spec
        self.rank, self.world = int(env.get("RANK", 0)), int(env.get("WORLD_SIZE", 1))
        self.local_rank = int(env.get("LOCAL_RANK", 0))
        self.local_world = min(int(env.get("LOCAL_WORLD_SIZE", self.world)), self.world)
        self.label = str(spec.get("label", "default"))
        self.tiny = bool(spec.get("tiny"))
        self.cuda = not self.tiny
        self.folder = Path(spec["folder"]) / f"rank{self.rank:05d}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.until = float(spec["until"])
        self._probe = ""

    @property
    def cases(self) -> tuple[str, ...]:
        return tuple(self.spec.get("cases", ()))

    def file(self, name: str) -> Path:
        """A path for a file that is to be packed under this name."""
        path = self.folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def emit(self, file: str, **row: Any) -> None:
        """A row of `file` (micro, collectives, training, ...)."""
        with (self.folder / f"{file}.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")

    def skip(self, what: str, why: object) -> None:
        """Says what was not measured; on rank 0, so that it is said once."""
        if self.rank == 0:
            reason = {"why": str(why)[:600], "label": self.label}
            self.emit("skipped", probe=self._probe, what=what, **reason)

    def left(self) -> float:
        """Seconds left to this probe, by this process's clock."""
        return self.until - time.time()

    def going(self, need: float = 0.0) -> bool:
        """Whether there is time for `need` seconds more."""
        return self.left() > need

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Part of what single GPUs measure: the first host's GPUs take turns, the other hosts get nothing."""
        return (
            items[self.rank :: self.local_world] if self.rank < self.local_world else []
        )

    def items(self, items: Sequence[T], key: Callable[[T], str]) -> Iterator[T]:
        """Items one after the other, as long as there is time; one that ended a process before is not tried again."""
        tried, longest = set(self.spec.get("tried", ())), 0.0
        for at, item in enumerate(items):
            name = f"{self._probe}:{key(item)}"
            if name in tried:
                continue
            if not self.going(0.7 * longest):
                self.skip(
                    f"{key(item)} and what comes after it ({len(items) - at} of {len(items)})",
                    "no time left",
                )
                return
            begin = time.time()
            self.mark("begin", name)
            yield item
            self.mark("end", name)
            longest = max(longest, time.time() - begin)

    def mark(self, what: str, name: str) -> None:
        """Progress, for the controller to read should this process die."""
        with (self.folder / "progress").open("a", encoding="utf-8") as out:
            out.write(json.dumps([self.spec.get("stage", ""), what, name]) + "\n")

    @contextlib.contextmanager
    def probing(self, name: str, until: float) -> Iterator[None]:
        """For the time of a probe: its name, and when it has to end."""
        self._probe, self.until = name, until
        self.mark("begin", name)
        yield
        self.mark("end", name)


def described(error: BaseException, frames: int = 3) -> str:
    """An error in a line or two: its kind, its text, and where it was, without the folders of this machine."""
    places = traceback.extract_tb(error.__traceback__)[-frames:]
    at = ", ".join(
        f"{Path(place.filename).name}:{place.lineno} {place.name}" for place in places
    )
    return f"{type(error).__name__}: {str(error)[:500]} (at {at})"
