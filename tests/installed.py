"""Which TensorFlow this environment contains: the GPU wheel, the CPU wheel, or another."""

from __future__ import annotations

import importlib.metadata

import pytest

from wheelbuilder.layout import CPU, DISTRIBUTION, FLAVOURS, Flavour


def distribution() -> importlib.metadata.Distribution | None:
    """The distribution that owns the folder tensorflow, ours or an official one, or None."""
    for name in (DISTRIBUTION, *(one.official_name for one in FLAVOURS)):
        for found in importlib.metadata.distributions(name=name):
            return found
    return None


def flavour() -> Flavour:
    """Our wheel's flavour; CPU if another TensorFlow, or none, is installed."""
    found = distribution()
    version = found.version if found else ""
    return next((one for one in FLAVOURS if version.endswith(f"+{one.release}")), CPU)


def tensorflow_version() -> str:
    """The version of the official wheel that ours is built from, such as 2.21.0; empty if none."""
    found = distribution()
    return found.version.partition("+")[0] if found else ""


def is_before(minor: str) -> bool:
    """Whether this environment's TensorFlow is older than `minor`, for example 2.20."""

    def numbers(version: str) -> list[int]:
        return [int(part) for part in version.split(".")[:2]]

    here = tensorflow_version()
    return bool(here) and numbers(here) < numbers(minor)


def needs_tensorflow(minor: str, what: str) -> pytest.MarkDecorator:
    """A mark that skips a test of a feature that older ones lack, as in docs/versions.md."""
    here = tensorflow_version()
    reason = f"{what}: needs TensorFlow {minor} or newer, found {here}"
    return pytest.mark.skipif(is_before(minor), reason=reason)


needs_compiled_steps = needs_tensorflow("2.20", "compiled steps")
