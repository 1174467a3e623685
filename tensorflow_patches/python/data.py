"""tf.mpi.data: datasets from files, of which each rank reads only its own part.

Reading therefore gets faster with more ranks; any other dataset is read whole by every rank. A
rank's rows are contiguous, and all ranks have the same number, except that the first ranks may have
one more. Keras's fit, evaluate and predict use such a dataset as it is, including anything that the
script derives from it by map, batch, shuffle or repeat, and weight each rank by its samples.

All ranks must call each function. With one rank, or averaging off, the part is the whole file.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from tensorflow.mpi._src.data import own_data
from tensorflow.mpi._src.readers import arrays, parts, text

__all__ = ["from_csv", "from_hdf5", "from_netcdf"]


def from_csv(
    path: str,
    label_column: int | None = 0,
    delimiter: str = ",",
    header: bool = False,
    dtype: Any = np.float32,
) -> Any:
    """Reads this rank's rows of a CSV file of numbers.

    Args:
      path: a file that all ranks can read, with one row per line.
      label_column: counted from 0, or from -1 for the last; None if there is none.
      header: whether the first line holds names.
      dtype: of the features; labels are int64 if they are whole numbers, otherwise of this dtype.

    Returns:
      A tf.data.Dataset of (features, label), or of features if there is no label column.

    Raises:
      ValueError: a row or the label column is wrong; the message says which.
      OSError: the file cannot be read.
    """
    numbers = text.read(path, delimiter, header).numbers
    labels = numbers[:, label_column] if _has_labels(numbers, label_column, path) else np.zeros(0)
    is_whole = bool(np.all(labels == np.round(labels)))
    summary = [len(numbers), numbers.shape[1], int(is_whole)]
    summaries = parts.gather_numbers(summary, f"columns of {os.path.basename(path)}").reshape(-1, 3)
    widths = {int(width) for rows, width, _ in summaries if rows}
    if len(widths) > 1:
        raise ValueError(
            f"{path}: the ranks' rows have {' and '.join(map(str, sorted(widths)))} columns"
        )
    if not len(numbers) and widths:
        numbers = np.zeros((0, *widths))
    if label_column is None:
        return own_data.of_arrays(numbers.astype(dtype))
    features = np.delete(numbers, label_column, 1) if numbers.shape[1] else numbers
    label_dtype = np.int64 if summaries[:, 2].all() else dtype
    return own_data.of_arrays((features.astype(dtype), labels.astype(label_dtype)))


def _has_labels(numbers: Any, column: int | None, path: str) -> bool:
    """Whether this rank has labels. Raises ValueError if the rows have no column `column`."""
    if column is None or not len(numbers):
        return False
    columns = numbers.shape[1]
    if not -columns <= column < columns:
        raise ValueError(f"{path} has {columns} columns; label_column={column} is out of range")
    return True


def from_hdf5(path: str, features: str = "data", labels: str | None = "labels") -> Any:
    """Reads this rank's rows of HDF5 datasets; h5py must be installed.

    Args:
      features, labels: names of datasets with the same number of rows; `labels` may be None.

    Returns:
      A tf.data.Dataset of (features, label), or of features.

    Raises:
      ValueError: there is no such dataset, or they have different numbers of rows.
      ImportError: h5py is not installed.
    """
    with arrays.hdf5(path) as file:
        return _dataset_of(file, path, features, labels)


def from_netcdf(path: str, features: str = "data", labels: str | None = "labels") -> Any:
    """Reads this rank's rows of NetCDF variables, classic or NetCDF-4; netCDF4 must be installed.

    Args, returns and raises: as for from_hdf5.
    """
    with arrays.netcdf(path) as file:
        return _dataset_of(file.variables, path, features, labels)


def _dataset_of(file: Any, path: str, features: str, labels: str | None) -> Any:
    data = arrays.named(file, features, path)
    rows = arrays.rows(data, f"{path}: '{features}'")
    if labels is None:
        return own_data.of_arrays(rows)
    label_array = arrays.named(file, labels, path)
    return own_data.of_arrays(
        (rows, arrays.rows(label_array, f"{path}: '{labels}'", data.shape[0]))
    )
