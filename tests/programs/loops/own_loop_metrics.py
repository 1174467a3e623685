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


m = mlp(1, "sigmoid")
o = keras.optimizers.RMSprop(0.01)
acc = keras.metrics.BinaryAccuracy()
L = keras.losses.BinaryCrossentropy()
out = []
ds = (
    tf.data.Dataset.from_tensor_slices((x, yc[:, None].astype("float32")))
    .shuffle(310)
    .batch(30, drop_remainder=True)
)


@tf.function
def step(a, b):
    with tf.GradientTape() as t:
        p = m(a, training=True)
        l = L(b, p)
    o.apply_gradients(zip(t.gradient(l, m.trainable_variables), m.trainable_variables))
    acc.update_state(b, p)
    return l


for _e in range(2):
    acc.reset_state()
    for a, b in ds:
        l = step(a, b)
    out.append([float(l), float(acc.result())])
done(m, None, out=out)
