"""Turns a model or a trace into an operation graph."""
