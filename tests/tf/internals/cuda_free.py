"""Trains on each rank's part, compiled and not; prints the libraries loaded in the process."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from common import compiles, result

samples = np.random.default_rng(1).normal(size=(32, 4)).astype("float32")
losses = []
for compiled in (False, True):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("adam", "mse", jit_compile=compiled and compiles())
    losses += model.fit(samples, samples[:, :2], batch_size=8, verbose=0).history["loss"]
with open("/proc/self/maps", encoding="utf-8") as file:
    mapped = {line.split(maxsplit=5)[5].strip() for line in file if "/" in line}
gpus = len(tf.config.list_physical_devices("GPU"))
result({"ranks": tf.mpi.size(), "losses": losses, "mapped": sorted(mapped), "gpus": gpus})
