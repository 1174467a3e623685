"""Compares the weights of ranks and of one process (cases.py): `equality.py ONE.npz RANKS.npz`.

Prints a row per case: the largest difference of a weight, relative to the largest weight.
"""

from __future__ import annotations

import sys

import numpy as np

# Half precision rounds gradients, and sums over ranks and over samples round at different points.
LIMITS = {"mixed_precision": 5e-3}
LIMIT = 1e-5


def differences(one: str, ranks: str) -> list[tuple[str, str, bool]]:
    """(case, largest difference or "missing", whether it is within its limit) for each case."""
    rows = []
    with np.load(one) as first, np.load(ranks) as second:
        for name in sorted({key.split("/")[0] for key in first.files}):
            keys = [key for key in first.files if key.split("/")[0] == name]
            if any(key not in second.files for key in keys):
                rows.append((name, "missing", False))
                continue
            largest = max(np.abs(first[key]).max() for key in keys)
            apart = max(np.abs(first[key] - second[key]).max() for key in keys) / largest
            # False for NaN.
            rows.append((name, f"{apart:.1e}", bool(apart <= LIMITS.get(name, LIMIT))))
    return rows


def main() -> int:
    """Returns the number of cases that differ or are missing."""
    rows = differences(sys.argv[1], sys.argv[2])
    for name, apart, right in rows:
        print(f"| {name} | {apart} | {'equal' if right else 'NOT equal'} |")
    return sum(not right for _, _, right in rows)


if __name__ == "__main__":
    sys.exit(main())
