"""OpenDP's integer Laplace noise, timed: prints nanoseconds per draw, one by one and in vectors, as JSON.

Takes the scale as its argument. Runs in the benchmarks' own environment.
"""

from __future__ import annotations

import json
import sys
import time

import opendp.prelude as dp

SCALARS = 5_000
VECTOR = 5_000
VECTORS = 20


def main(scale: float) -> None:
    """Time both forms of the mechanism."""
    dp.enable_features("contrib")
    scalar = dp.m.make_laplace(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=scale)
    vector = dp.m.make_laplace(dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int), scale=scale)
    zeros = [0] * VECTOR
    scalar(0)
    vector(zeros)
    began = time.perf_counter()
    for _ in range(SCALARS):
        scalar(0)
    alone = (time.perf_counter() - began) / SCALARS
    began = time.perf_counter()
    for _ in range(VECTORS):
        vector(zeros)
    together = (time.perf_counter() - began) / (VECTORS * VECTOR)
    print(json.dumps({"scalar": 1e9 * alone, "vector": 1e9 * together}))


if __name__ == "__main__":
    main(float(sys.argv[1]))
