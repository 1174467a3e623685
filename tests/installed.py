"""Which TensorFlow this environment holds: the wheel for GPUs, or that without."""

from __future__ import annotations

import importlib.metadata

from wheelbuilder.layout import CPU, FLAVOURS, Flavour


def distribution() -> importlib.metadata.Distribution | None:
    """tensorflow-cpu, or tensorflow, whichever is here."""
    for one in FLAVOURS:
        for found in importlib.metadata.distributions(name=one.distribution):
            return found
    return None


def flavour() -> Flavour:
    found = distribution()
    name = found.name.replace("-", "_") if found else CPU.distribution
    return next(one for one in FLAVOURS if one.distribution == name)
