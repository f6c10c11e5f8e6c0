"""Data parallelism: who keeps which parameters, gradients and states, and what moves between them in a step.

``policy`` has the decisions as values. ``unit`` follows them: parameters that are gathered, freed and reduced together,
of PyTorch's modules (``module_unit``) or Megatron's layers (``layers``).
``ddp``, ``zero`` and ``zero3`` fill buckets.
"""
