"""Is this log of NCCL normal? What the cluster should reach, what does not, and which cause predicts the log."""
