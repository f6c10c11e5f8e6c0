"""What all tests share."""

from hypothesis import settings

# How long an example takes depends on the machine, not on the program: time is measured by benchmarks.
settings.register_profile("prestep", deadline=None)
settings.load_profile("prestep")
