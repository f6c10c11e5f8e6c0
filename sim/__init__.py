"""Executes an operation graph on a cluster."""

__version__ = "0.3.0"
