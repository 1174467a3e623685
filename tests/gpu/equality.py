"""Compares what ranks and one process have trained (cases.py): `equality.py ONE.npz RANKS.npz`.

Prints a row for each case: the largest difference of a weight, relative to the largest weight.
"""

from __future__ import annotations

import sys

import numpy as np

# Half precision rounds gradients, whose sums over ranks and over samples are rounded elsewhere.
LIMITS = {"mixed_precision": 5e-3}
LIMIT = 1e-5


def compare(one: str, ranks: str) -> int:
    """The number of cases that differ or are missing."""
    wrong = 0
    with np.load(one) as first, np.load(ranks) as second:
        names = sorted({key.split("/")[0] for key in first.files})
        for name in names:
            keys = [key for key in first.files if key.split("/")[0] == name]
            if any(key not in second.files for key in keys):
                print(f"| {name} | missing | |")
                wrong += 1
                continue
            largest = max(np.abs(first[key]).max() for key in keys)
            apart = max(np.abs(first[key] - second[key]).max() for key in keys) / largest
            limit = LIMITS.get(name, LIMIT)
            right = bool(apart <= limit)  # false for NaN
            wrong += not right
            print(f"| {name} | {apart:.1e} | {'equal' if right else f'NOT within {limit:.0e}'} |")
    return wrong


if __name__ == "__main__":
    sys.exit(compare(sys.argv[1], sys.argv[2]))
