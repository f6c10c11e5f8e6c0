"""Device memory of a rank: who has what, which blocks PyTorch's allocator cuts for it, and what it reserves."""
