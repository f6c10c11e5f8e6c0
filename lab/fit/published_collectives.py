"""Fits NCCL's constants, or what it gets out of a network, to published nccl-tests measurements (CSV).

`python -m lab.fit.published_collectives rows.csv --cluster dgx-b200 -o mine.toml [--network]` takes the rows of
machines on that cluster, at the node counts that `machines.toml` gives to fits. Facts of the network that `--network`
does not fit stay as the cluster has them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from lab.formats.published_collectives import to_fit
from prestep.topologies import load_cluster
from prestep.validation.fit import calibrate, network


def main(words: Sequence[str] | None = None) -> None:
    """Writes the constants, or with `--network` a cluster file, and says how well they fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--network", action="store_true")
    options = parser.parse_args(words)
    rows = to_fit(options.rows, options.cluster)
    if options.network:
        stated = load_cluster(options.cluster).facts.items()
        fixed = {
            key: fact.value
            for key, fact in stated
            if key.startswith("net_") and key not in network.RANGE
        }
        facts = network.fit(rows, fixed)
        network.write(facts, options.cluster, options.output, [options.rows])
        print(facts.summary)
    else:
        constants = calibrate.calibrate(rows, [])
        calibrate.write(constants, options.output, [options.rows])
        print(constants.summary)


if __name__ == "__main__":
    main()
