"""Executes an operation graph on a cluster."""

__version__ = "0.1.0"
