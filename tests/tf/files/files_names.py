"""Saves under names that differ by rank, and files of tf.data, compared with one process.

    files_names.py DIR

The script does not mention ranks, except for a number that stands for the time of a run. Prints
what exists under each rank's names, the duration of its saves, and the sum of the weights that it
loaded.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import unittest.mock
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from common import result

DIRECTORY = Path(sys.argv[1])
MEGABYTE = 1 << 20
TIME = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
x = np.random.default_rng(0).normal(size=(48, 4)).astype("f")
y = x.sum(1, keepdims=True)
printed: dict[str, Any] = {}


def make() -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def weights(model: Any) -> float:
    return float(sum(np.abs(value).sum() for value in model.get_weights()))


def temporary_folder(model: Any) -> None:
    """Saves, lists, loads and removes in one go, without a collective in between."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save(folder / "model.keras")
        printed["zip"] = sorted(zipfile.ZipFile(folder / "model.keras").namelist())
        printed["loaded"] = weights(keras.models.load_model(folder / "model.keras"))
        checkpoint = tf.train.Checkpoint(model=model)
        manager = tf.train.CheckpointManager(checkpoint, str(folder / "some"), max_to_keep=2)
        for _ in range(3):
            manager.save()
        latest = tf.train.latest_checkpoint(folder / "some")
        printed["checkpoints"] = sorted(tf.io.gfile.listdir(str(folder / "some")))
        printed["latest"] = [Path(latest).name, Path(manager.latest_checkpoint).name]
        other = make()
        tf.train.Checkpoint(model=other).restore(latest).assert_existing_objects_matched()
        printed["restored"] = weights(other)
        tf.compat.v1.train.update_checkpoint_state(str(folder / "some"), str(folder / "other"))
        printed["updated"] = tf.train.get_checkpoint_state(folder / "some").model_checkpoint_path
        printed["updated"] = Path(printed["updated"]).name
        model.export(folder / "exported", verbose=False)
        exported = tf.saved_model.load(folder / "exported")
        printed["served"] = float(np.abs(exported.serve(x[:2]) - model(x[:2])).max()) < 1e-5
        shutil.rmtree(folder / "exported")
        printed["folder"] = sorted(os.listdir(folder))
    file, name = tempfile.mkstemp(suffix=".weights.h5")
    os.close(file)
    model.save_weights(name)
    other.load_weights(name)
    os.remove(name)
    printed["mkstemp"] = weights(other)


def in_memory() -> None:
    """A file system inside the process, in which each rank finds its own file."""
    tf.saved_model.save(tf.Module(), "ram://module")
    printed["in memory"] = sorted(tf.io.gfile.listdir("ram://module"))
    tf.saved_model.load("ram://module")


def process_number(model: Any) -> None:
    """Also a short number, as in a container, where no other number contains a rank's."""
    for number in (os.getpid(), 41 + TIME):
        with unittest.mock.patch("os.getpid", lambda number=number: number):
            moved(model)


def moved(model: Any) -> None:
    name = DIRECTORY / f"model-{os.getpid()}.keras"
    model.save(name)
    printed["size"] = name.stat().st_size > 1000
    if TIME == 0:
        time.sleep(0.3)  # rank 0 is last: the target is a link to its own file already
    os.replace(src=name, dst=DIRECTORY / "model.keras")
    printed["replaced"] = weights(keras.models.load_model(DIRECTORY / "model.keras"))


def one_run(model: Any) -> None:
    """A folder named after the time, during fit and after it."""
    run = DIRECTORY / "runs" / f"120{TIME}"
    callbacks = keras.callbacks
    used = [
        callbacks.ModelCheckpoint(f"{run}/{{epoch}}-{{loss:.3f}}.keras"),
        callbacks.CSVLogger(DIRECTORY / "log.csv"),
        callbacks.BackupAndRestore(f"{run}/backup"),
    ]
    run.mkdir(parents=True, exist_ok=True)
    model.fit(x, y, epochs=2, verbose=0, callbacks=used)
    printed["run"] = sorted(os.listdir(run))
    printed["rows"] = len((DIRECTORY / "log.csv").read_text().splitlines())
    last = DIRECTORY / f"last-of-120{TIME}.keras"
    model.save(last)
    other = keras.models.load_model(last)
    printed["last"] = [weights(other), other.evaluate(x, y, verbose=0)]


def backup_that_goes() -> None:
    """tf_keras's backup, in a folder with a random name on each rank."""
    folder = tempfile.mkdtemp(dir=DIRECTORY)
    model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, y, epochs=2, verbose=0, callbacks=[tf_keras.callbacks.BackupAndRestore(folder)])
    printed["backup"] = os.listdir(folder)
    os.rmdir(folder)


def rank_0_saves_more(model: Any) -> None:
    """An extra save of rank 0 is not mistaken for the next save of all ranks."""
    if TIME == 0:
        model.save(DIRECTORY / "extra.keras")
    model.set_weights([value + 1 for value in model.get_weights()])
    time.sleep(0.3 if TIME == 0 else 0)
    model.save(DIRECTORY / "common.keras")
    printed["common"] = weights(keras.models.load_model(DIRECTORY / "common.keras"))
    printed["all"] = weights(model)


def cached_pairs(rows: Any) -> Any:
    """A cache file; each row that is not cached costs 1 MB of another file."""

    def decode(row: Any, target: Any, file: Any) -> Any:
        length = tf.strings.length(tf.io.read_file(file))
        return row + tf.cast(length - MEGABYTE, tf.float32), target

    files = [str(DIRECTORY / "sample")] * len(rows)
    pairs = tf.data.Dataset.from_tensor_slices((rows, y, files)).map(decode)
    return pairs.cache(str(DIRECTORY / "pairs")).batch(16)


def megabytes_read() -> float:
    with open("/proc/self/io") as io:
        return int(io.readline().split()[1]) / MEGABYTE


def datasets(model: Any) -> None:
    (DIRECTORY / "sample").write_bytes(bytes(MEGABYTE))
    before = megabytes_read()
    model.fit(cached_pairs(x), epochs=2, verbose=0)
    filled = megabytes_read()
    printed["from the file"] = all(
        np.array_equal(a, b) for (a, _), b in zip(cached_pairs(x + 1).unbatch(), x)
    )
    printed["decoded"] = [round((filled - before) / 48, 1), round((megabytes_read() - filled) / 48)]
    half = str(DIRECTORY / f"half-{TIME}")
    of_rank_0 = [Path(f"{half}.index"), Path(f"{half}_0.lockfile")] if TIME else []
    for path in of_rank_0:  # which rank 0 is about to complete
        path.touch()
    printed["half"] = [int(n) for n in tf.data.Dataset.range(3).cache(half)]
    for path in of_rank_0:
        path.unlink()
    printed["cut"] = int(next(iter(tf.data.Dataset.range(3).cache(str(DIRECTORY / "cut")))))
    numbers = tf.data.Dataset.range(20)
    cached, snapshot = numbers.cache(str(DIRECTORY / "cache")), numbers.snapshot("snapshot")
    for _ in range(2):
        printed["cached"] = [int(n) for n in cached]
        printed["taken"] = sorted(int(n) for n in snapshot)
    numbers.save(str(DIRECTORY / "saved"))
    printed["saved"] = [int(n) for n in tf.data.Dataset.load(str(DIRECTORY / "saved"))]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        session.run(tf.data.Dataset.range(20).save(str(DIRECTORY / "saved in a session")))


os.chdir(DIRECTORY)
keras.utils.set_random_seed(1)
the_model = make()
the_model.fit(x, y, verbose=0)
temporary_folder(the_model)
in_memory()
process_number(the_model)
one_run(the_model)
backup_that_goes()
rank_0_saves_more(the_model)
datasets(the_model)
result(printed)
