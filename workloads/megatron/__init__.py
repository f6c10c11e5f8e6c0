"""Megatron-LM's training step: a transformer of repeated units, written as symbolic PyTorch and recorded once each.

``modules`` has its layers, which ``attention``, ``mla``, ``feed_forward`` and ``moe`` fill; ``linear`` and
``elementwise`` their operators. ``unit`` records one layer's forward and backward pass, ``stage`` plays them along a
pipeline's schedule, and ``lower`` puts the stages together.
"""
