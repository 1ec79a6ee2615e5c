"""private-pgm (`mbi`) told that all pairs of attributes will be asked.

``measure`` is ``pairs`` (all pairs, with equal parts of the budget) or ``tree``: MST (McKenna, Miklau & Sheldon 2021), a third of
the budget on single attributes, a third on choosing a tree of pairs, a third on measuring them. A graphical model is fitted to
all. Takes an input and an output path: ``codes``, ``sizes``, ``epsilon``, ``delta``, ``seed``; the output has the estimated counts
of every pair, one after the other. Runs in the benchmarks' own environment.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
from private_pgm import Curator, Domain, along_tree, estimation, whole, zcdp_of  # type: ignore[import-not-found]


def main(source: Path, target: Path) -> None:
    """Measure, fit, and write the counts of all pairs."""
    given = np.load(source)
    sizes = [int(size) for size in given["sizes"]]
    epsilon, delta = float(given["epsilon"]), float(given["delta"])
    budget = zcdp_of(epsilon, delta) if delta else epsilon
    curator = Curator(given["codes"], sizes, delta, int(given["seed"]))
    domain = Domain(tuple(map(str, range(len(sizes)))), tuple(sizes))
    pairs = list(combinations(range(len(sizes)), 2))
    if str(given["measure"]) == "pairs":
        marginal = whole(estimation.MirrorDescent().estimate(domain, curator.measure(pairs, budget)), sizes)
    else:
        measurements = curator.measure([(axis,) for axis in range(len(sizes))], budget / 3.0)
        edges = curator.tree(measurements, budget / 3.0)
        measurements += curator.measure(edges, budget / 3.0)
        marginal = along_tree(estimation.MirrorDescent().estimate(domain, measurements), sizes, edges)
    np.save(target, np.concatenate([np.asarray(marginal(pair)).ravel() for pair in pairs]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
