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


m = mlp()
o = keras.optimizers.SGD(0.05)
ev = []
for _it in range(5):
    old = m.get_weights()
    c = np.random.randint(0, 8)
    i = np.random.choice(310, 40, replace=False)
    ds = tf.data.Dataset.from_tensor_slices((x[i], x[i, c : c + 1])).shuffle(40).batch(10)
    for a, b in ds:
        with tf.GradientTape() as t:
            l = tf.reduce_mean(tf.square(m(a) - b))
        o.apply_gradients(zip(t.gradient(l, m.trainable_weights), m.trainable_weights))
    m.set_weights([w + 0.5 * (n - w) for w, n in zip(old, m.get_weights())])
    ev.append(float(l))
done(m, None, ev=ev)
