"""A law over many cases: `make test` looks at a sample of them, or at all of them in one test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest

Law = Callable[..., None]


def sample(cases: Iterable[Any], every: int = 4) -> list[Any]:
    """All cases for `parametrize`, of which each `every`-th one is not slow.

    Examples
    --------
    >>> [case.marks[0].name if hasattr(case, "marks") else case for case in sample("abcde", 4)]
    ['a', 'slow', 'slow', 'slow', 'e']
    """
    return [
        pytest.param(*_values(case), marks=pytest.mark.slow) if at % every else case
        for at, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


def together(
    names: str | tuple[str, ...], cases: Iterable[Any]
) -> Callable[[Law], Law]:
    """`parametrize` as one test: every case that breaks the law is named, and each has a `tmp_path` of its own.

    A test costs some milliseconds before it begins, which is more than a small case takes.

    Examples
    --------
    >>> @together("n", [1, 2, 3])
    ... def test_a_number_is_odd(n: int) -> None:
    ...     assert n % 2, "is even"
    >>> test_a_number_is_odd()
    Traceback (most recent call last):
    AssertionError: 1 of 3 cases: n=2: is even
    """
    own = (names,) if isinstance(names, str) else names
    tables = [
        dict(zip(own, _values(case) if len(own) > 1 else (case,), strict=True))
        for case in cases
    ]

    def decorate(law: Law) -> Law:
        @wraps(law)
        def test(**fixtures: Any) -> None:
            broken, skipped = dict[str, Exception](), dict[str, str]()
            for at, table in enumerate(tables):
                case = ", ".join(f"{name}={value!r}" for name, value in table.items())
                if "tmp_path" in fixtures:
                    table = table | {"tmp_path": fixtures["tmp_path"] / str(at)}
                    table["tmp_path"].mkdir()
                try:
                    law(**fixtures | table)
                except pytest.skip.Exception as reason:
                    skipped[case] = str(reason)
                except Exception as error:
                    broken[case] = error
            if broken:
                lines = [f"{case}: {error}" for case, error in broken.items()]
                head = f"{len(broken)} of {len(tables)} cases: "
                raise AssertionError(head + "\n".join(lines)) from next(
                    iter(broken.values())
                )
            if len(skipped) == len(tables):
                pytest.skip("; ".join(sorted({*skipped.values()})))

        signature = inspect.signature(law)
        left = [one for name, one in signature.parameters.items() if name not in own]
        test.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return test

    return decorate
