"""Settings in which probes run, found by the probe's name; read by the controller, which may have no PyTorch."""
