"""TensorFlow Model Optimization's pruning guide: a schedule of sparse weights, tf_keras `fit`."""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow_model_optimization as tfmot
import tf_keras
from report import done

tf_keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)
x = drawn.normal(size=(256, 10)).astype(np.float32)
y = (x.sum(1, keepdims=True) > 0).astype(np.float32)
base = tf_keras.Sequential(
    [tf_keras.layers.Dense(16, "relu", input_shape=(10,)), tf_keras.layers.Dense(1, "sigmoid")]
)
schedule = tfmot.sparsity.keras.PolynomialDecay(0.2, 0.8, begin_step=2, end_step=14, frequency=2)
model = tfmot.sparsity.keras.prune_low_magnitude(base, pruning_schedule=schedule)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(
    x, y, batch_size=32, epochs=2, verbose=0, callbacks=[tfmot.sparsity.keras.UpdatePruningStep()]
)
stripped = tfmot.sparsity.keras.strip_pruning(model)
zeros = [int((weight == 0).sum()) for weight in stripped.get_weights()]
done(history=history.history, weights=stripped.get_weights(), zeros=zeros)
