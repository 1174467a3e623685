"""Reads the files of a folder; prints this rank's part of each, and how much it read for it."""

from __future__ import annotations

import os
import sys

import numpy as np
import tensorflow as tf
from common import place, result
from tensorflow.mpi.datasets import DataSet

RANK, SIZE = place()
FOLDER = sys.argv[1]


def path(name: str) -> str:
    return os.path.join(FOLDER, name)


def bytes_read() -> int:
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def numbers(dataset: tf.data.Dataset) -> list[list[float]]:
    batches = dataset.batch(4096).as_numpy_iterator()
    return [
        [float(label), float(row[0])]
        for rows, labels in batches
        for row, label in zip(rows, labels)
    ]


found: dict[str, object] = {}
tf.mpi.data.from_csv(path("small.csv"))  # loads everything
before = bytes_read()
dataset = tf.mpi.data.from_csv(path("rows.csv"), header=True)
found["csv bytes"] = bytes_read() - before
found["csv"] = numbers(dataset)
found["csv spec"] = str(dataset.element_spec)
found["tiny"] = numbers(tf.mpi.data.from_csv(path("tiny.csv")))
found["no labels"] = [
    row.numpy().tolist() for row in tf.mpi.data.from_csv(path("small.csv"), label_column=None)
]
found["tabs"] = numbers(tf.mpi.data.from_csv(path("tabs.txt"), label_column=-1, delimiter="\t"))
tf.mpi.data.from_hdf5(path("small.h5"))
before = bytes_read()
dataset = tf.mpi.data.from_hdf5(path("rows.h5"))
found["hdf5 bytes"] = bytes_read() - before
found["hdf5"] = numbers(dataset)
if os.path.exists(path("rows.nc")):
    tf.mpi.data.from_netcdf(path("small.nc"))
    before = bytes_read()
    dataset = tf.mpi.data.from_netcdf(path("rows.nc"))
    found["netcdf bytes"] = bytes_read() - before
    found["netcdf"] = numbers(dataset)
    data = DataSet("PNETCDF", train_file=path("rows.nc"), train_batch_size=3)
    found["DataSet netcdf"] = [
        data.training_data.tolist()[0],
        len(data.training_data),
        data.training_labels.argmax(1).tolist(),
    ]

data = DataSet(
    "CSV", train_file=path("small.csv"), train_batch_size=4, valid_pct=0.25, validation_file=None
)
older = DataSet("csv", ",", 4, None, 1.0, path("small.csv"), None, None, None, 0.25, 0.0)
assert np.array_equal(data.training_data, older.training_data)
found["DataSet csv"] = [
    data.training_data[:, 0].tolist(),
    data.validation_data[:, 0].tolist(),
    data.training_labels.argmax(1).tolist(),
    data.training_labels.shape[1],
]
batches = [data.next_train_batch()[0][:, 0].tolist() for _ in range(3)]
rows = data.training_data[:, 0].tolist()
assert sum(batches, []) == [rows[i % len(rows)] for i in range(12)], batches
found["no batch size"] = ""
try:
    data.next_test_batch()
except UserWarning as warning:
    found["no batch size"] = str(warning)
signs = DataSet("CSV", train_file=path("signs.csv"))
found["DataSet signs"] = signs.training_labels.argmax(1).tolist()
classes = DataSet("HDF5", train_file=path("classes.h5"))
found["DataSet hdf5"] = sorted(
    [int(label), int(row[0])]
    for row, label in zip(classes.training_data, classes.training_labels.argmax(1))
)
for name in ("MNIST", "CIFAR10", "CIFAR100"):
    images = DataSet(name, normalize=2.0, data_directory=path(name), valid_pct=0.5)
    found[name] = [
        [
            getattr(images, f"{split}_data")
            .reshape(-1, images.training_data[0].size)[:, 0]
            .tolist(),
            getattr(images, f"{split}_labels").argmax(1).tolist(),
        ]
        for split in ("training", "validation", "testing")
    ]
folder = DataSet("CSV", data_directory=path("csvs"))
found["DataSet folder"] = folder.training_data[:, 1].tolist()

# Gradients are weighted by samples, so one step over all rows equals that of one process.
model = tf.keras.Sequential(
    [tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1, kernel_initializer="ones")]
)
model.compile(tf.keras.optimizers.SGD(0.01), "mse")
mine = tf.mpi.data.from_csv(path("small.csv"))
history = model.fit(mine.batch(100), epochs=2, verbose=0)
found["weights"] = [float(x) for w in model.get_weights() for x in w.flatten()]
found["loss"] = history.history["loss"]
found["predicted"] = len(model.predict(mine.batch(2), verbose=0))
result(found)
