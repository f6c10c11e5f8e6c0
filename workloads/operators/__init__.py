"""What PyTorch launches on a GPU for each ATen operation: one file for each family of operations."""
