"""Probes, one file each: TITLE, NEEDS ("host", "gpu", "gpus"), WEIGHT (share of the time), measure(session).

Optional: ORDER, the place among the probes that share a group of processes (50). A probe that runs in several settings,
each in a group of its own, has them in `prestep.validation.measure.settings`.
"""

LISTED = "what `prestep measure` can measure"
