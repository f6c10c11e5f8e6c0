"""Times what PyTorch does for each ATen operation of a training program: kernels, GPU time, host time, watts.

`python -m lab.measure --out FILE.jsonl` on a machine with a GPU; PyTorch alone is needed. One file of cases
for each family of operations; `plan` puts them in order, `timing` times them, `trace` reads the profiler's kernels.
"""
