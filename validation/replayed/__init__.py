"""Sets of recorded runs, which `prestep.sim.replay` replays: a source of sets as other distributions have them."""
