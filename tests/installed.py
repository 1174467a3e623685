"""Which TensorFlow this environment holds: the wheel for GPUs, or that without."""

from __future__ import annotations

import importlib.metadata

import pytest

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


def tensorflow_version() -> str:
    """Of the official wheel that ours was made from, as 2.21.0; empty if there is none here."""
    found = distribution()
    return found.version.partition("+")[0] if found else ""


def is_before(minor: str) -> bool:
    """Whether the TensorFlow here is older than, say, 2.20."""

    def numbers(version: str) -> list[int]:
        return [int(part) for part in version.split(".")[:2]]

    here = tensorflow_version()
    return bool(here) and numbers(here) < numbers(minor)


def needs_tensorflow(minor: str, what: str) -> pytest.MarkDecorator:
    """Skips a test of what TensorFlow has from `minor` on, as docs/versions.md says."""
    here = tensorflow_version()
    reason = f"{what}: with TensorFlow {minor} and newer, here is {here}"
    return pytest.mark.skipif(is_before(minor), reason=reason)


needs_compiled_steps = needs_tensorflow("2.20", "compiled steps")
