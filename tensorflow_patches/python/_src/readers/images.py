"""MNIST, CIFAR10 and CIFAR100 from local files, in the formats of their publishers."""

from __future__ import annotations

import contextlib
import gzip
import os
import pickle
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]  # images, labels
_MNIST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_MNIST_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def mnist(folder: str) -> tuple[Arrays, Arrays]:
    """(training, testing) from the four idx files, gzipped or not, or from mnist.npz.

    Images have the shape (n, 28, 28, 1), labels (n,).
    """
    packed = os.path.join(folder, "mnist.npz")
    if os.path.exists(packed):
        with _reading(packed), np.load(packed) as file:
            images, test_images = file["x_train"][..., None], file["x_test"][..., None]
            return (images, file["y_train"]), (test_images, file["y_test"])
    images, labels = (_idx(folder, name) for name in _MNIST)
    test_images, test_labels = (_idx(folder, name) for name in _MNIST_TEST)
    return (images[..., None], labels), (test_images[..., None], test_labels)


def _idx(folder: str, name: str) -> np.ndarray[Any, Any]:
    path = os.path.join(folder, name)
    for candidate in (path, f"{path}.gz"):
        if os.path.exists(candidate):
            opened = gzip.open if candidate.endswith(".gz") else open
            with _reading(candidate), opened(candidate, "rb") as file:
                return _array(file.read())
    raise FileNotFoundError(
        f"MNIST is missing in '{folder}': put {name} (or .gz) there, or mnist.npz"
    )


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Raises ValueError, which names the file, if its content cannot be read."""
    try:
        yield
    except Exception as error:  # damaged files raise many types
        if getattr(error, "errno", None):  # of the file system
            raise
        said = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"'{path}' is damaged, or not the published file ({said}): download it again"
        ) from error


def _array(data: bytes) -> np.ndarray[Any, Any]:
    zero, kind, dims = struct.unpack_from(">HBB", data)
    if zero != 0 or kind != 8:
        raise ValueError("it is not an idx file of bytes")
    shape = struct.unpack_from(f">{dims}I", data, 4)
    array = np.frombuffer(data, np.uint8, offset=4 + 4 * dims)
    if array.size != int(np.prod(shape)):
        raise ValueError(f"it has {array.size} bytes, but its header says {shape}")
    return array.reshape(shape)


def cifar10(folder: str) -> tuple[Arrays, Arrays]:
    """(training, testing) from the unpacked archive.

    Images have the shape (n, 3072): all red values, then green, then blue. Labels have (n,).
    """
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    return _cifar(folder, "cifar-10-batches-py", batches, "test_batch", "labels")


def cifar100(folder: str) -> tuple[Arrays, Arrays]:
    """As cifar10; the labels are the fine ones."""
    return _cifar(folder, "cifar-100-python", ["train"], "test", "fine_labels")


def _cifar(
    folder: str, inside: str, train: list[str], test: str, label_key: str
) -> tuple[Arrays, Arrays]:
    def batch(name: str) -> Arrays:
        path = os.path.join(folder, inside, name)
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path} is missing: unpack CIFAR's archive in '{folder}'")
        with _reading(path), open(path, "rb") as file:
            found = _OnlyArrays(file, encoding="latin1").load()
            return found["data"], np.asarray(found[label_key])

    images, labels = map(np.concatenate, zip(*map(batch, train)))
    return (images, labels), batch(test)


# What a pickled array may refer to. Whole pairs, not just modules: a module prefix would also allow
# what NumPy's modules import, such as os.system.
_OF_ARRAYS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _OnlyArrays(pickle.Unpickler):
    """Loads only what CIFAR's files contain; refuses anything else that a pickle may call."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _OF_ARRAYS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a NumPy array")
