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


s = tf.distribute.MirroredStrategy(["CPU:0"])
ds = s.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(31))
with s.scope():
    m = mlp()
    o = keras.optimizers.SGD(0.1)


@tf.function
def step(d):
    def f(d):
        a, b = d
        with tf.GradientTape() as t:
            l = tf.nn.compute_average_loss(
                tf.reduce_sum(tf.square(m(a) - b), 1), global_batch_size=31
            )
        o.apply_gradients(zip(t.gradient(l, m.trainable_variables), m.trainable_variables))
        return l

    return s.reduce("SUM", s.run(f, args=(d,)), axis=None)


out = [float(step(d)) for e in range(2) for d in ds]
done(m, None, out=out)
