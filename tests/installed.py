"""Which TensorFlow this environment holds: the wheel for GPUs, or that without."""

from __future__ import annotations

import importlib.metadata

from wheelbuilder.layout import CPU, DISTRIBUTION, FLAVOURS, Flavour


def distribution() -> importlib.metadata.Distribution | None:
    """What owns the folder tensorflow: ours, or whichever official one is here."""
    for name in (DISTRIBUTION, *(one.official for one in FLAVOURS)):
        for found in importlib.metadata.distributions(name=name):
            return found
    return None


def flavour() -> Flavour:
    found = distribution()
    version = found.version if found else ""
    return next((one for one in FLAVOURS if version.endswith(f"+{one.release}")), CPU)
