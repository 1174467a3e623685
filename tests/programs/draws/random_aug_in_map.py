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


aug = keras.Sequential(
    [keras.layers.RandomFlip(seed=1), keras.layers.RandomTranslation(0.1, 0.1, seed=2)]
)
im = rng.random((96, 8, 8, 3)).astype("float32")
lb = np.arange(96) % 2
ds = (
    tf.data.Dataset.from_tensor_slices((im, lb))
    .batch(16)
    .map(lambda a, b: (aug(a, training=True), b))
)
m = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1, "sigmoid")])
m.compile("sgd", "binary_crossentropy")
h = m.fit(ds, epochs=2, verbose=0)
done(m, h)
