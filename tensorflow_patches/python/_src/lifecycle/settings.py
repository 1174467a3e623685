"""The settings that must be the same on all ranks; compared at the start (roll_call.h)."""

from __future__ import annotations

import importlib.metadata
import json
import platform

from tensorflow.mpi import _build_info, config

_PACKAGES = ("numpy", "keras", "tf_keras")
# The entries of keras.json, with Keras's defaults.
_KERAS = {
    "backend": "tensorflow",
    "epsilon": "1e-07",
    "floatx": "float32",
    "image_data_format": "channels_last",
}


def text() -> str:
    """Lines NAME=value. The build comes first, because other builds may have different lines."""
    wheel = f"{_build_info.VERSION} {_build_info.BUILD_ID}"
    lines = {"wheel": wheel, "Python": _minor(platform.python_version())}
    versions = dict(packages())
    lines |= versions | {"numpy": _minor(versions["numpy"])}
    lines |= config.shared_settings()
    lines |= {f"keras.json's {name}": value for name, value in _keras_file().items()}
    # Joins a value's lines into one.
    return "".join(f"{name}={' '.join(value.split())}\n" for name, value in lines.items())


def packages() -> list[tuple[str, str]]:
    """The packages that must be the same on all ranks, with their versions."""
    return [(name, _version(name)) for name in _PACKAGES]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _keras_file() -> dict[str, str]:
    """The values of keras.json, or the defaults, with which Keras creates that file if missing."""
    try:
        with open(config.keras_file(), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        found = {}
    if not isinstance(found, dict):
        found = {}
    return {name: str(found.get(name, default)) for name, default in _KERAS.items()}
