"""A lowered step on its cluster: how long its kernels take, how its communications go, what slows both."""
