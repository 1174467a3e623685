import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(16)
D = tf.data.Dataset
rng = np.random.default_rng(0)
x = rng.normal(size=(180, 3)).astype("float32")
y = (x[:, :1] > 0.5).astype("float32")
base = D.from_tensor_slices((x, y))
out = []
sets = {
    "resample": base.rejection_resample(lambda a, b: tf.cast(b[0], tf.int32), [0.5, 0.5], seed=1)
    .map(lambda c, v: v)
    .take(90)
    .batch(20),
    "unbatch": base.batch(7).map(lambda a, b: (a * 2, b)).unbatch().batch(16),
    "noshuffle": base.shuffle(40, seed=2, reshuffle_each_iteration=False).batch(25).repeat(2),
    "window": base.window(12, drop_remainder=True).flat_map(
        lambda a, b: D.zip((a.batch(12), b.batch(12)))
    ),
    "concat": base.take(33).concatenate(base.skip(100)).batch(32),
    "scan": base.scan(0.0, lambda s, v: (s + 1.0, (v[0] + 0.001 * s, v[1]))).batch(30),
    "random": D.zip((base, D.random(seed=3)))
    .map(lambda v, r: (v[0] + tf.cast(r % 7, tf.float32) * 0.01, v[1]))
    .batch(40),
    "enum": base.enumerate().filter(lambda i, v: i % 3 != 0).map(lambda i, v: v).batch(24),
    "padded": base.map(lambda a, b: (a[: 2 + tf.cast(b[0], tf.int32)], b)).padded_batch(
        20, ([3], [1])
    ),
    "group": base.group_by_window(
        lambda a, b: tf.cast(b[0], tf.int64), lambda k, d: d.batch(15), window_size=15
    ),
}
m = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
m.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
for k, ds in sets.items():
    h = m.fit(ds, epochs=2, verbose=0)
    out.append([k, h.history["loss"], len(list(ds))])
done(m, h, out=[[b, c] for _, b, c in out])
