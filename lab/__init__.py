"""The laboratory: fits, published tables, sets of single sources, pages and benchmarks; not installed with prestep.

`make lab` runs it. It imports the product, and nothing of the product imports it; its sets are found through the entry
point group `prestep.sets` (lab/pyproject.toml).
"""

from pathlib import Path

#: Measurements of single sources, and what constants were fitted to.
CASES = Path(__file__).parent / "cases"
