"""Values made last, by what they were made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """The last `most` values; keys are compared, not hashed, since scenarios have mappings in them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[Any, T]] = []  # the one asked for last comes last

    def get(self, key: Any) -> T | None:
        """The value of a key, if it is kept."""
        for at, (known, value) in enumerate(self._kept):
            if known == key:
                self._kept.append(self._kept.pop(at))
                return value
        return None

    def keep(self, key: Any, value: T) -> None:
        """Keep a value in the place of what the key had; the one that was not asked for longest goes."""
        self._kept = [(known, one) for known, one in self._kept if known != key]
        self._kept.append((key, value))
        del self._kept[: -self._most]

    def of(self, key: Any, make: Callable[[], T]) -> T:
        """The value that is kept, or a new one, which is kept."""
        found = self.get(key)
        if found is None:
            found = make()
            self.keep(key, found)
        return found
