"""The Model Garden's Orbit: a Controller, and the trainer of Orbit's example."""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import orbit
import tensorflow as tf
import tf_keras
from orbit.examples.single_task.single_task_trainer import SingleTaskTrainer
from report import done

tf_keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)
x = drawn.normal(size=(256, 16)).astype(np.float32)
labels = (x.sum(1) > 0).astype(np.int64)
model = tf_keras.Sequential(
    [tf_keras.layers.Dense(32, activation="relu"), tf_keras.layers.Dense(2)]
)
model.build((None, 16))
trainer = SingleTaskTrainer(
    tf.data.Dataset.from_tensor_slices({"x": x, "label": labels}).batch(32).repeat(),
    label_key="label",
    model=tf_keras.Sequential([tf_keras.layers.Lambda(lambda inputs: inputs["x"]), model]),
    loss_fn=tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none"),
    optimizer=tf_keras.optimizers.Adam(0.01),
    metrics=tf_keras.metrics.SparseCategoricalAccuracy(),
)
controller = orbit.Controller(
    global_step=trainer.optimizer.iterations, trainer=trainer, steps_per_loop=8
)
controller.train(steps=32)
done(
    metrics={name: float(value) for name, value in trainer.train_loop_end().items()},
    weights=model.get_weights(),
)
