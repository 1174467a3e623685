"""What a train_step draws for its samples and for the whole batch. Argument: keras, tf_keras."""

import sys

import numpy as np
import tensorflow as tf
from common import compiles, result
from tensorflow.mpi._src.global_batch import batch

if sys.argv[1] == "tf_keras":
    import tf_keras as keras
else:
    import keras

BATCH = 8
# Not part of the model, which would average them.
DRAWN = [tf.Variable(tf.zeros(3)) for _ in range(6)]
GENERATOR = tf.random.Generator.from_seed(3)
seen: list = []


def note(*drawn):
    seen.append([part.tolist() for part in drawn])
    return np.float32(0)


class Model(keras.Model):
    def train_step(self, data):
        x, y = data
        rows = tf.shape(x)[0]
        drawn = [
            tf.random.normal(tf.shape(x)),
            tf.random.uniform((rows, 2), seed=4),
            tf.random.categorical(tf.zeros([rows, 12]), 6),
            GENERATOR.normal((rows, 2)),
            tf.random.gamma([], tf.ones([rows])),
            tf.random.normal([]),
            tf.random.uniform([3]),
            GENERATOR.normal([3]),
        ]
        if sys.argv[1] == "keras":
            drawn.append(keras.random.normal(tf.shape(x)))
            drawn.append(keras.random.normal((), seed=self.held))
            drawn.append(keras.random.normal((3,), seed=self.held))
            drawn.append(keras.random.normal(tf.shape(x), seed=self.held))
            drawn.append(self.dropout(tf.ones((rows, 64)), training=True))
            drawn.append(self.one_mask(tf.ones((rows, 64)), training=True)[:1])
        else:
            drawn.append(self.dropout(tf.ones((rows, 64)), training=True))
        tf.numpy_function(note, drawn, tf.float32)
        return super().train_step(data)


def steps(samples, seed):
    seen.clear()
    if seed is not None:
        keras.utils.set_random_seed(seed)
    inputs = keras.Input((3,))
    model = Model(inputs, keras.layers.Dense(1)(inputs))
    # A layer of tf_keras draws another seed for each trace.
    model.dropout = keras.layers.Dropout(0.5, seed=None if sys.argv[1] == "keras" else 6)
    if sys.argv[1] == "keras":
        model.held = keras.random.SeedGenerator(5)
        model.one_mask = keras.layers.Dropout(0.5, noise_shape=(1, 64))
    model.compile("sgd", "mse", jit_compile=False)
    x = np.zeros((samples, 3), "f")
    model.fit(x, np.zeros((samples, 1), "f"), batch_size=BATCH, epochs=1, verbose=0)
    return [list(step) for step in seen]


class Compiled(keras.Model):
    def train_step(self, data):
        x, _ = data
        seen = [
            tf.random.normal(tf.shape(x)),
            tf.random.uniform(tf.shape(x)),
            tf.random.uniform(tf.shape(x), 0, 10**6, tf.int32),
            tf.random.categorical(tf.zeros([tf.shape(x)[0], 12]), 6),
            tf.random.uniform([3]),
            tf.random.normal(self.layers[-1].kernel.shape),  # as many rows as there are samples
        ]
        part = batch.current()
        # Records during an inspection would be whole batches.
        looked_at = part is not None and part.findings is not None
        for variable, value in zip([] if looked_at else DRAWN, seen):
            variable.assign(tf.cast(tf.reshape(value, [-1])[:3], tf.float32))
        return super().train_step(data)


def compiled():
    inputs = keras.Input((BATCH // 2,))
    model = Compiled(inputs, keras.layers.Dense(2)(inputs))
    model.compile("sgd", "mse", jit_compile=compiles())
    x = np.zeros((BATCH, BATCH // 2), "f")
    model.fit(x, x[:, :2], batch_size=BATCH, verbose=0)
    return [variable.numpy().tolist() for variable in DRAWN]


result(
    {
        "compiled": compiled(),
        "even": steps(16, None),
        "uneven": steps(15, None),
        "seeded": steps(16, 1),
    }
)
