"""HDF5 and NetCDF: each rank reads its own rows of each array."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorflow.mpi._src.readers import parts


class MissingLibraryError(ImportError):
    """The package that reads this format is not installed."""


def hdf5(path: str) -> Any:
    """An open file. Raises MissingLibraryError."""
    try:
        import h5py
    except ImportError:
        raise MissingLibraryError(f"{path}: to read HDF5, pip install h5py") from None
    return h5py.File(path, "r")


def netcdf(path: str) -> Any:
    """As hdf5. Variables are read as stored: not scaled, and without a mask."""
    try:
        import netCDF4
    except ImportError:
        raise MissingLibraryError(f"{path}: to read NetCDF, pip install netCDF4") from None
    file = netCDF4.Dataset(path, "r")
    file.set_auto_maskandscale(False)
    return file


def rows(array: Any, what: str, total: int | None = None) -> np.ndarray[Any, Any]:
    """This rank's rows of a file's array, whose name in errors is `what`.

    Raises ValueError if the array is a scalar, or does not have `total` rows.
    """
    if not array.shape:
        raise ValueError(f"{what} is a single value; an array with rows is needed")
    if total is not None and array.shape[0] != total:
        raise ValueError(f"{what} has {array.shape[0]} rows, but the other array has {total}")
    first, last = parts.part(array.shape[0])
    return np.asarray(array[first:last])


def named(names: dict[str, Any], name: str, path: str) -> Any:
    """The array of that name; otherwise a ValueError that lists the existing ones."""
    if name not in names:
        known = ", ".join(sorted(names))
        raise ValueError(f"{path} has no array '{name}'; it contains {known}")
    return names[name]
