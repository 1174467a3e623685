"""Sonnet's README: an MLP in a custom loop. All ranks have the same batches."""

from __future__ import annotations

import numpy as np
import sonnet as snt
import tensorflow as tf
from report import done

tf.random.set_seed(1)
drawn = np.random.default_rng(0)
x = drawn.normal(size=(256, 16)).astype(np.float32)
labels = (x.sum(1) > 0).astype(np.int64)
model = snt.nets.MLP([32, 2])
optimizer = snt.optimizers.Adam(learning_rate=0.01)


@tf.function
def step(x, labels):
    with tf.GradientTape() as tape:
        logits = model(x)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels)
        loss = tf.reduce_mean(loss)
    variables = model.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)
    return loss


losses = [
    float(step(*batch))
    for _ in range(3)
    for batch in tf.data.Dataset.from_tensor_slices((x, labels)).batch(32)
]
done(losses=losses, weights=[variable.numpy() for variable in model.variables])
