"""Runs N steps of an optimizer on GPU:0, to count waits with the stand-in: `steps.py N`.

FAKE_CUDA_STATISTICS=1 prints the counts. The difference of two runs gives the cost of a step.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

with tf.device("GPU:0"):
    WEIGHTS = [tf.Variable(np.ones((300, 300), np.float32)), tf.Variable(np.ones(300, np.float32))]
    DATA = tf.constant(np.ones((300, 300), np.float32))
OPTIMIZER = keras.optimizers.SGD(0.1)


@tf.function
def step(x: Any) -> None:
    with tf.device("GPU:0"):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.tanh(x) * WEIGHTS[0] + WEIGHTS[1]))
        gradients = tape.gradient(loss, WEIGHTS)
        OPTIMIZER.apply_gradients(zip(gradients, WEIGHTS, strict=True))


for _ in range(int(sys.argv[1])):
    step(DATA)
