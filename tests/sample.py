"""A law over many cases: `make test` looks at a sample of them, `make test-all` at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


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
