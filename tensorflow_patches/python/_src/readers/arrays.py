"""HDF5 and NetCDF: each rank reads its rows of each array."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorflow.mpi._src.readers import parts


class MissingLibraryError(ImportError):
    """A package that reads this format is not installed."""


def hdf5(path: str) -> Any:
    """An open file. Raises MissingLibraryError."""
    try:
        import h5py
    except ImportError:
        raise MissingLibraryError(f"{path}: to read HDF5, pip install h5py") from None
    return h5py.File(path, "r")


def netcdf(path: str) -> Any:
    """An open file, whose variables are as they are stored. Raises MissingLibraryError."""
    try:
        import netCDF4
    except ImportError:
        raise MissingLibraryError(f"{path}: to read NetCDF, pip install netCDF4") from None
    file = netCDF4.Dataset(path, "r")
    file.set_auto_maskandscale(False)
    return file


def rows(array: Any, what: str, total: int | None = None) -> np.ndarray[Any, Any]:
    """This rank's rows of a file's array.

    Raises ValueError if it has no rows, or not `total`.
    """
    if not array.shape:
        raise ValueError(f"{what} is a single value, and has no rows")
    if total is not None and array.shape[0] != total:
        raise ValueError(f"{what} has {array.shape[0]} rows, and the other array {total}")
    first, last = parts.part(array.shape[0])
    return np.asarray(array[first:last])


def named(names: dict[str, Any], name: str, path: str) -> Any:
    """The array of that name; ValueError with those that there are."""
    if name not in names:
        known = ", ".join(sorted(names))
        raise ValueError(f"{path} has no array '{name}'; it has {known}")
    return names[name]
