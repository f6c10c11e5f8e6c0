"""What TorchInductor joins of the operations of a compiled function: our model of it."""
