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


m = mlp(2)
o = keras.optimizers.Adam(0.01)
out = []
for _ep in range(4):
    s = np.random.normal(size=8)
    buf = []
    for t in range(10):
        p = tf.nn.softmax(m(s[None].astype("float32")))[0].numpy()
        a = np.random.choice(2, p=p / p.sum())
        r = float(s[0] * (1 if a else -1))
        buf.append((s, a, r))
        s = 0.9 * s + 0.1 * np.random.normal(size=8)
    S = np.array([b[0] for b in buf], "float32")
    A = np.array([b[1] for b in buf])
    R = np.array([b[2] for b in buf], "float32")
    with tf.GradientTape() as t:
        l = tf.reduce_mean(
            keras.losses.sparse_categorical_crossentropy(A, m(S), from_logits=True) * R
        )
    o.apply_gradients(zip(t.gradient(l, m.trainable_variables), m.trainable_variables))
    out.append(float(l))
done(m, None, out=out)
