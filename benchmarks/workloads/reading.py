"""Trains a small network on JPEGs with one input pipeline; prints the seconds per epoch.

python -m benchmarks.workloads.reading PIPELINE FOLDER EPOCHS
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

MARK = "EPOCHS "
BATCH, SIDE, CLASSES = 64, 128, 10
AUTO = tf.data.AUTOTUNE


def decode(jpeg: Any) -> Any:
    return tf.image.resize(tf.io.decode_jpeg(jpeg, channels=3), [SIDE, SIDE])


def read_image(path: Any, label: Any) -> Any:
    return decode(tf.io.read_file(path)), label


def labelled_images(folder: Path) -> Any:
    found = sorted(folder.glob("images/*/*.jpg"))
    labels = [int(path.parent.name) for path in found]
    files = tf.data.Dataset.from_tensor_slices(([str(path) for path in found], labels))
    return files.shuffle(len(found), seed=1).map(read_image)


def paths(folder: Path) -> Any:
    return labelled_images(folder).batch(BATCH)


def augmented(folder: Path) -> Any:
    """Even in one process, the order in which samples draw random numbers is not fixed."""

    def change(image: Any, label: Any) -> Any:
        return tf.image.random_brightness(tf.image.random_flip_left_right(image), 0.1), label

    return labelled_images(folder).map(change, AUTO).batch(BATCH)


def directory(folder: Path) -> Any:
    return keras.utils.image_dataset_from_directory(
        str(folder / "images"), image_size=(SIDE, SIDE), batch_size=BATCH, seed=1, verbose=False
    )


def records(folder: Path) -> Any:
    def parse(record: Any) -> Any:
        features = {
            "jpeg": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        found = tf.io.parse_single_example(record, features)
        return decode(found["jpeg"]), found["label"]

    files = tf.data.Dataset.list_files(str(folder / "*.tfrecord"), shuffle=False)
    read = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=AUTO)
    return read.shuffle(500, seed=1).repeat().map(parse, AUTO).batch(BATCH).prefetch(AUTO)


class Decoded(keras.utils.PyDataset):
    """Batches decoded by Python code."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.paths = list(map(str, sorted(folder.glob("images/*/*.jpg"))))

    def __len__(self) -> int:
        return math.ceil(len(self.paths) / BATCH)

    def __getitem__(self, index: int) -> Any:
        # Every len(self)th image, so that a batch has images of all classes.
        chosen = self.paths[index :: len(self)]
        images = [decode(tf.io.read_file(path)).numpy() for path in chosen]
        return np.stack(images), np.array([int(Path(path).parent.name) for path in chosen])


PIPELINES: dict[str, Callable[[Path], Any]] = {
    "paths": paths,
    "augmented": augmented,
    "directory": directory,
    "records": records,
    "python": Decoded,
}


class Clock(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begin = time.perf_counter(), time.process_time()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._begin[0])
        self.cpu_seconds.append(time.process_time() - self._begin[1])


def network() -> Any:
    made = keras.Sequential([
        keras.Input((SIDE, SIDE, 3)),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(CLASSES),
    ])  # fmt: skip
    made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def main() -> None:
    name, folder, epochs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    keras.utils.set_random_seed(1)
    data, clock = PIPELINES[name](folder), Clock()
    images = len(list(folder.glob("images/*/*.jpg")))
    steps = {"steps_per_epoch": images // BATCH} if name == "records" else {}
    history = network().fit(data, epochs=epochs + 1, callbacks=[clock], verbose=0, **steps)
    found = {
        "seconds": clock.seconds[1:],
        "cpu_seconds": clock.cpu_seconds[1:],
        "loss": history.history["loss"][-1],
    }
    print(MARK + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
