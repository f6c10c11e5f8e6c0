"""Megatron-LM's training step: a transformer of repeated units, written as symbolic PyTorch and recorded once each.

``functional`` and ``modules`` are its layers,
``unit`` records one layer's forward and backward pass, ``lower`` puts units together along a pipeline schedule.
"""
