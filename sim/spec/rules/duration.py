"""Refuses what would take years: each size is possible, and all of them together are not."""

from __future__ import annotations

from prestep.sim.errors import InputError, Mistake

#: Seconds of a year, beyond which nobody waits for a step or for requests to be served.
YEAR = 365 * 86400.0


def check_duration(seconds: float, where: str, keys: str, what: str) -> None:
    """Raises InputError where a step, or serving, takes longer than a year.

    Examples
    --------
    >>> check_duration(0.5, "job.toml", "model, training", "a step")
    >>> check_duration(1e9, "job.toml", "model, training", "a step")
    Traceback (most recent call last):
    sim.errors.InputError: job.toml: model, training: found a step of 31.7 years, ...
    """
    if seconds <= YEAR:
        return
    found = f"{what} of {seconds / YEAR:.3g} years"
    hint = "check the sizes of the model and of the batch, or take more GPUs"
    raise InputError(Mistake(where, keys, found, "one of at most a year", hint))
