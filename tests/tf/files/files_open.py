"""Reads the files of files_tf.py and files_keras.py with the official wheel.

    files_open.py tensorflow|keras|tf_keras DIR...

Prints by folder: the values of every checkpoint, the weights of every model, and the number of
events of each kind in each folder of event files.
"""

from __future__ import annotations

import collections
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, result


def events(directory: Path) -> dict[str, Any]:
    """By folder of event files: how many files, and how many events of each kind."""
    found: dict[str, Any] = collections.defaultdict(collections.Counter)
    for file in directory.rglob("*tfevents*"):
        counts = found[str(file.parent.relative_to(directory))]
        counts["files"] += 1
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            kind = event.WhichOneof("what")
            counts[kind] += 1
            for value in event.summary.value:
                counts[f"summary {value.tag}"] += 1
    return found


def tensorflow_files(directory: Path) -> dict[str, Any]:
    values = {}
    for index in sorted(directory.rglob("*.index")):
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        for name in reader.get_variable_to_shape_map():
            if "value" in name and "OBJECT" not in name:
                values[str(index.relative_to(directory))] = float(np.mean(reader.get_tensor(name)))
    module = tf.saved_model.load(directory / "module")
    built = tf.compat.v1.saved_model.load_v2(str(directory / "v1" / "built"), ["serve"])
    return {
        "values": values,
        "module": float(tf.reduce_mean(module.times(2.0))),
        "built": float(tf.reduce_mean(built.variables[0])),
        "latest": Path(tf.train.latest_checkpoint(directory / "managed")).name,
        "events": events(directory),
    }


def keras_files(name: str, directory: Path) -> dict[str, Any]:
    keras = importlib.import_module(name)
    models = {}
    for file in sorted([*directory.glob("**/*.keras"), directory / "model.h5"]):
        model = keras.models.load_model(file, compile=False)
        models[str(file.relative_to(directory))] = [encode(w) for w in model.get_weights()]
    names = sorted(directory.glob("**/*.weights.h5")) + [directory / "backup/latest.weights.h5"]
    names += [directory / "tf" / "weights"]
    for file in names:
        if file.exists() or file.with_suffix(".index").exists():
            model.load_weights(file)
            models[str(file.relative_to(directory))] = [encode(w) for w in model.get_weights()]
    x = np.ones((3, 4), "f")
    exported = tf.saved_model.load(directory / "exported")
    return {
        "models": models,
        "exported": float(np.abs(exported.serve(x).numpy() - model(x)).max()),
        "rows": len((directory / "log.csv").read_text().splitlines()),
        "events": events(directory),
    }


def main() -> None:
    kind, *directories = sys.argv[1:]
    found = {}
    for directory in map(Path, directories):
        if kind == "tensorflow":
            found[str(directory)] = tensorflow_files(directory)
        else:
            found[str(directory)] = keras_files(kind, directory)
    result({"stock": not hasattr(tf, "mpi"), "found": found})


main()
