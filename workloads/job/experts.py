"""How tokens are spread over experts, as a job says it."""

from __future__ import annotations


def zipf_exponent(said: str) -> float | None:
    """Exponent of Zipf's law: 0 for uniform, 1 for zipf where none is said; None for other words."""
    word, _, number = said.replace(":", " ").strip().lower().partition(" ")
    if word == "uniform" and not number:
        return 0.0
    try:
        value = float(number or 1.0)
    except ValueError:
        return None
    return value if word == "zipf" and 0 <= value < 10 else None
