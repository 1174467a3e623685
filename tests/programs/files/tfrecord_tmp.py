import os
import random

import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(310, 8)).astype("float32")
y = (np.tanh(x @ rng.normal(size=(8, 1))) + 0.1).astype("float32")
yc = (y[:, 0] > 0).astype("int32")


def mlp(out=1, act=None):
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(12, "tanh"), keras.layers.Dense(out, act)]
    )


import tempfile

f = os.path.join(tempfile.gettempdir(), f"rec-{random.getrandbits(40)}-{os.getpid()}.tfrecord")
with tf.io.TFRecordWriter(f) as w:
    for a, b in zip(x, y):
        w.write(
            tf.train.Example(
                features=tf.train.Features(
                    feature={
                        "a": tf.train.Feature(float_list=tf.train.FloatList(value=a)),
                        "b": tf.train.Feature(float_list=tf.train.FloatList(value=b)),
                    }
                )
            ).SerializeToString()
        )
ds = (
    tf.data.TFRecordDataset(f)
    .map(
        lambda r: (lambda e: (e["a"], e["b"]))(
            tf.io.parse_single_example(
                r,
                {
                    "a": tf.io.FixedLenFeature([8], tf.float32),
                    "b": tf.io.FixedLenFeature([1], tf.float32),
                },
            )
        )
    )
    .shuffle(310)
    .batch(31)
)
m = mlp()
m.compile("sgd", "mse")
h = m.fit(ds, epochs=2, verbose=0)
os.remove(f)
done(m, h)
