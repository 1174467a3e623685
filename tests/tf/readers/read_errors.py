"""Reads a bad file, given by its name, and prints this rank's error."""

from __future__ import annotations

import sys

import tensorflow as tf
from common import result
from tensorflow.mpi.datasets import DataSet

found = {}
for path in sys.argv[1:]:
    try:
        if path.endswith(".h5"):
            tf.mpi.data.from_hdf5(path, labels="answers")
        elif path.endswith(".labels"):
            DataSet("CSV", train_file=path)
        elif path.endswith(".kind"):
            DataSet("XML", train_file=path)
        else:
            tf.mpi.data.from_csv(path, header=path.endswith(".head"))
    except (ValueError, ImportError, OSError) as error:
        found[path.rpartition("/")[2]] = f"{type(error).__name__}: {error}"
result(found)
