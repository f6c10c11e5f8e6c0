"""Measures a machine: what `prestep measure` and `python -m prestep.validation.measure` run.

A controller without any library starts one process per GPU for each stage (its environment set before NCCL starts); the
processes run probes (`probes/`, one file each, found by name) and write rows; the controller packs everything into one
zip file that describes itself. Only the standard library and PyTorch are needed, and only on machines with GPUs.
"""
