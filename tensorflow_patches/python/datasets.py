"""MaTEx's DataSet: this rank's part of a data set as arrays, for scripts written for MaTEx."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from tensorflow.mpi._src.readers import arrays, images, parts, text

__all__ = ["DataSet"]

_MNIST_TRAINING = 50000  # of 60000; the rest is for validation


class DataSet:
    """This rank's part of training, validation and testing data: training_data, training_labels, ….

    Args:
      data_name: "MNIST", "CIFAR10", "CIFAR100", "CSV", "HDF5" or "PNETCDF" (also "NETCDF"); case
        does not matter.
      train_batch_size: for next_train_batch().
      test_batch_size: for next_validation_batch() and next_test_batch().
      normalize: the divisor for images.
      train_file, validation_file, test_file: for CSV, HDF5 and NetCDF.
      valid_pct: the fraction, from 0 to 1, of the training rows that is held out for validation.
        Not for MNIST, whose last 10,000 training images always are.
      test_pct: the fraction of the remaining rows that is held out for testing. Not for images,
        which have their own test set.
      delim: separates the numbers of a CSV file.
      data_directory: the folder of MNIST or CIFAR (default: MNIST_data, CIFAR_data); or a folder
        of CSV files, whose rows have no labels.

      Positional arguments come in this order, or as in older scripts: data_name, delim,
      train_batch_size, test_batch_size, normalize, train_file, validation_file, test_file,
      data_directory, valid_pct, test_pct.

    Parts are contiguous; if rows do not divide evenly, the first ranks have one more. A CSV file
    has its label in column 0. An HDF5 file has one dataset per class, and its rows are shuffled. A
    NetCDF file has one variable of bytes and one of integers. Labels are one-hot.

    Raises ValueError, which names the wrong row and column; OSError; ImportError.
    """

    def __init__(self, data_name: str, *args: Any, **kwargs: Any) -> None:
        given = _settings(args, kwargs)
        self.dataset = data_name
        self.train_file = given["train_file"]
        self.validation_file = given["validation_file"]
        self.test_file = given["test_file"]
        self.data_directory = given["data_directory"]
        self.train_batch_size = given["train_batch_size"]
        self.test_batch_size = given["test_batch_size"]
        self.training_data: Any = None
        self.training_labels: Any = None
        self.validation_data: Any = None
        self.validation_labels: Any = None
        self.testing_data: Any = None
        self.testing_labels: Any = None
        self._next: dict[str, int] = {}
        kind = data_name.lower()
        if kind in _IMAGES:
            self._read_images(kind, given["normalize"], given["valid_pct"])
        elif kind == "csv" and self.data_directory is not None:
            self._read_folder(given["delim"])
        elif kind in _FILES:
            self._read_files(kind, given["delim"], given["valid_pct"], given["test_pct"])
        else:
            known = ", ".join(sorted([*_IMAGES, *_FILES]))
            raise ValueError(f"DataSet {data_name!r} is unknown; accepted: {known}")

    def _read_images(self, kind: str, normalize: float, valid_pct: float) -> None:
        """Reads packed files whole, and keeps this rank's part."""
        read, folder, classes = _IMAGES[kind]
        (data, labels), (test_data, test_labels) = read(self.data_directory or folder)
        num_held_out = int(len(data) * valid_pct)
        if kind == "mnist":
            data, held_out = data[:_MNIST_TRAINING], data[_MNIST_TRAINING:]
            labels, held_out_labels = labels[:_MNIST_TRAINING], labels[_MNIST_TRAINING:]
        else:
            held_out, held_out_labels = data[:num_held_out], labels[:num_held_out]
            data, labels = data[num_held_out:], labels[num_held_out:]
        for split, samples, numbers in (
            ("training", data, labels),
            ("validation", held_out, held_out_labels),
            ("testing", test_data, test_labels),
        ):
            first, last = parts.part(len(samples))
            self._keep(split, samples[first:last] / normalize, numbers[first:last], classes)

    def _read_files(self, kind: str, delim: str, valid_pct: float, test_pct: float) -> None:
        read = _FILES[kind]
        paths = ("training", self.train_file), ("validation", self.validation_file)
        for split, path in (*paths, ("testing", self.test_file)):
            if path is None:
                continue
            data, labels, classes = read(path, delim)
            if split == "training":
                for other, share in (("validation", valid_pct), ("testing", test_pct)):
                    if share:  # even if that is less than one row: an empty array, not None
                        kept = len(data) - int(len(data) * share)
                        self._keep(other, data[kept:], labels[kept:], classes)
                        data, labels = data[:kept], labels[:kept]
            self._keep(split, data, labels, classes)

    def _read_folder(self, delim: str) -> None:
        """Concatenates the files of a folder, in the order of their names; there are no labels."""
        found = []
        for folder, folders, names in os.walk(self.data_directory):
            folders.sort()
            for name in sorted(names):
                found.append(text.read(os.path.join(folder, name), delim).numbers)
        nonempty = [array for array in found if array.size]
        self.training_data = np.concatenate(nonempty) if nonempty else np.zeros((0, 0))

    def _keep(self, split: str, data: Any, labels: Any, classes: int) -> None:
        setattr(self, f"{split}_data", data)
        setattr(self, f"{split}_labels", one_hot(labels, classes))

    def next_train_batch(self) -> list[Any]:
        """[data, labels] of this rank's next train_batch_size rows; starts over at the end."""
        return self._batch("training", self.train_batch_size, "train_batch_size")

    def next_validation_batch(self) -> list[Any]:
        return self._batch("validation", self.test_batch_size, "test_batch_size")

    def next_test_batch(self) -> list[Any]:
        return self._batch("testing", self.test_batch_size, "test_batch_size")

    def _batch(self, split: str, size: int | None, name: str) -> list[Any]:
        if size is None:
            raise UserWarning(f"DataSet {self.dataset} was created without {name}; pass it")
        data, labels = getattr(self, f"{split}_data"), getattr(self, f"{split}_labels")
        if data is None or not len(data):
            raise ValueError(f"DataSet {self.dataset} has no {split} rows on this rank")
        first = self._next.get(split, 0)
        rows = np.arange(first, first + size) % len(data)
        self._next[split] = (first + size) % len(data)
        return [data[rows], None if labels is None else labels[rows]]


_DEFAULTS = {
    "train_batch_size": None,
    "test_batch_size": None,
    "normalize": 1.0,
    "train_file": None,
    "validation_file": None,
    "test_file": None,
    "valid_pct": 0.0,
    "test_pct": 0.0,
    "delim": ",",
    "data_directory": None,
}
_OLD_ORDER = (
    *("delim", "train_batch_size", "test_batch_size", "normalize", "train_file"),
    *("validation_file", "test_file", "data_directory", "valid_pct", "test_pct"),
)


def _settings(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, from either order: only the older one begins with a string."""
    order = _OLD_ORDER if args and isinstance(args[0], str) else tuple(_DEFAULTS)
    if len(args) > len(order):
        raise TypeError(f"DataSet takes at most {len(order)} arguments after its name")
    given = dict(zip(order, args, strict=False))
    for name, value in kwargs.items():
        if name not in _DEFAULTS or name in given:
            raise TypeError(f"DataSet: {name} is given twice, or is not an argument of DataSet")
        given[name] = value
    return {**_DEFAULTS, **given}


def one_hot(labels: Any, classes: int) -> np.ndarray[Any, Any]:
    labels = np.asarray(labels, np.int64)
    encoded = np.zeros((len(labels), classes))
    encoded[np.arange(len(labels)), labels] = 1
    return encoded


def _csv(path: str, delim: str) -> tuple[Any, Any, int]:
    """This rank's data and labels (from 0 up; -1 becomes 0), and the number of classes."""
    rows = text.read(path, delim)
    numbers = rows.numbers
    if not rows.total:
        raise ValueError(f"{path} has no rows")
    labels: np.ndarray[Any, Any] = numbers[:, 0] if numbers.size else np.zeros(0)
    own = np.unique(labels).tolist()
    found = np.unique(parts.gather_numbers(own, f"labels of {os.path.basename(path)}")).tolist()
    if not np.all(labels == np.round(labels)) or (found[0] != 0 and found != [-1, 1]):
        raise ValueError(
            f"{path}: the labels, in the first column, range from {found[0]} to {found[-1]}; they "
            "must be whole numbers from 0 up, or only -1 and 1"
        )
    labels = np.where(labels == -1, 0, labels)
    return (numbers[:, 1:] if numbers.size else np.zeros((0, 0))), labels, found[-1] + 1


def _hdf5(path: str, delim: str) -> tuple[Any, Any, int]:
    """One dataset per class, in the order of their names."""
    with arrays.hdf5(path) as file:
        names = sorted(file)
        of_class = [arrays.rows(file[name], f"{path}: '{name}'") for name in names]
    labels = np.repeat(np.arange(len(names)), [len(rows) for rows in of_class])
    data = np.concatenate(of_class)
    order = np.random.permutation(len(data))
    return data[order], labels[order], len(names)


def _netcdf(path: str, delim: str) -> tuple[Any, Any, int]:
    with arrays.netcdf(path) as file:
        kinds = {
            variable.dtype.kind + str(variable.dtype.itemsize): name
            for name, variable in file.variables.items()
        }
        data = kinds.get("i1") or kinds.get("u1")
        labels = kinds.get("i4") or kinds.get("i8")
        if data is None or labels is None:
            raise ValueError(f"{path} must have one variable of bytes and one of integers")
        total = file.variables[data].shape[0]
        mine = arrays.rows(file.variables[data], f"{path}: '{data}'").view(np.uint8)
        numbers = arrays.rows(file.variables[labels], f"{path}: '{labels}'", total)
    largest = parts.gather_numbers(
        [int(numbers.max()) if len(numbers) else 0], f"labels of {os.path.basename(path)}"
    )
    return mine, numbers, int(largest.max()) + 1


_IMAGES: dict[str, Any] = {
    "mnist": (images.mnist, "MNIST_data", 10),
    "cifar10": (images.cifar10, "CIFAR_data", 10),
    "cifar100": (images.cifar100, "CIFAR_data", 100),
}
_FILES: dict[str, Any] = {"csv": _csv, "hdf5": _hdf5, "pnetcdf": _netcdf, "netcdf": _netcdf}
