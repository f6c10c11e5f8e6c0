"""Probes, one file each: TITLE, NEEDS ("host", "gpu", "gpus"), WEIGHT (share of the time), measure(session).

Optional: ORDER (place among the probes that share a group, 50), variants(options, place): the settings it runs in, each
in a group of processes of its own.
"""
