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


t = tf.ragged.constant(
    [[int(v) for v in rng.integers(1, 20, int(n))] for n in rng.integers(1, 6, 80)], dtype=tf.int64
)
lab = rng.random(80).astype("float32")
ds = tf.data.Dataset.from_tensor_slices((t, lab)).batch(16).map(lambda a, b: (a.to_tensor(), b))
m = keras.Sequential(
    [keras.layers.Embedding(20, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
)
m.compile("adam", "mse")
h = m.fit(ds, epochs=2, verbose=0)
done(m, h)
