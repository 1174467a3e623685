"""MNIST, CIFAR10 and CIFAR100 from local files, in the formats of their publishers."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from typing import Any

import numpy as np

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]  # images, labels
_MNIST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_MNIST_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def mnist(folder: str) -> tuple[Arrays, Arrays]:
    """(training, testing) from the four idx files, gzipped or not, or from mnist.npz."""
    packed = os.path.join(folder, "mnist.npz")
    if os.path.exists(packed):
        with np.load(packed) as file:
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
            with opened(candidate, "rb") as file:
                return _array(file.read(), candidate)
    raise FileNotFoundError(
        f"MNIST is missing: put {path}, or {name}.gz or mnist.npz, in that folder"
    )


def _array(data: bytes, path: str) -> np.ndarray[Any, Any]:
    zero, kind, dims = struct.unpack_from(">HBB", data)
    if zero != 0 or kind != 8:
        raise ValueError(f"{path} is not an idx file of bytes")
    shape = struct.unpack_from(f">{dims}I", data, 4)
    array = np.frombuffer(data, np.uint8, offset=4 + 4 * dims)
    if array.size != int(np.prod(shape)):
        raise ValueError(f"{path} has {array.size} bytes, but its header says {shape}")
    return array.reshape(shape)


def cifar10(folder: str) -> tuple[Arrays, Arrays]:
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    return _cifar(os.path.join(folder, "cifar-10-batches-py"), batches, "test_batch", "labels")


def cifar100(folder: str) -> tuple[Arrays, Arrays]:
    return _cifar(os.path.join(folder, "cifar-100-python"), ["train"], "test", "fine_labels")


def _cifar(folder: str, train: list[str], test: str, labels: str) -> tuple[Arrays, Arrays]:
    loaded = [_unpickled(os.path.join(folder, name)) for name in train]
    test_batch = _unpickled(os.path.join(folder, test))
    images = np.concatenate([batch["data"] for batch in loaded])
    all_labels = np.concatenate([np.asarray(batch[labels]) for batch in loaded])
    return (images, all_labels), (test_batch["data"], np.asarray(test_batch[labels]))


# What a pickled array may refer to. By full names, because NumPy's modules also import os.
_OF_ARRAYS = {
    *(("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")),
    *(("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")),
}


class _OnlyArrays(pickle.Unpickler):
    """Loads only what CIFAR's files contain; refuses anything else that a pickle may call."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _OF_ARRAYS:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a NumPy array")


def _unpickled(path: str) -> Any:
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} is missing: unpack CIFAR's archive there")
    with open(path, "rb") as file:
        return _OnlyArrays(file, encoding="latin1").load()
