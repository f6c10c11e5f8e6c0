"""Sizes that a scenario may state: from 1 to far above what anybody has trained, far below what would be a mistake.

Each is 10 to 100 times the largest of a published model or run. A larger number is a slip of a unit or of a file, and
its answer would be a step of years.
"""

from __future__ import annotations

from prestep.sim.strict import Range

# Widths: of the residual stream (largest published about 20,000), and of a feed-forward layer (about 100,000).
WIDTH, INNER_WIDTH = Range(1, 2**20), Range(1, 2**24)
# Heads of a layer (a few hundred), and experts (a few thousand, Switch Transformer).
HEADS, EXPERTS = Range(1, 2**16), Range(1, 2**16)
# Entries of a vocabulary (about 256,000; tables of recommenders are no vocabularies).
VOCABULARY = Range(1, 2**26)
# Tokens of a sample or prompt (100 million), and samples of a microbatch and of a step.
TOKENS, SAMPLES, BATCH = Range(1, 2**30), Range(1, 2**27), Range(1, 2**32)
# Ranks of a job: a recording that says more is damaged.
RANKS = 1_000_000
