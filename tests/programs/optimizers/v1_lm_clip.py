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


v1 = tf.compat.v1
g = tf.Graph()
with g.as_default():
    v1.set_random_seed(3)
    ids = v1.placeholder(tf.int32, [None, 5])
    t = v1.placeholder(tf.float32, [None])
    e = v1.get_variable("emb", [30, 4], initializer=v1.random_uniform_initializer(seed=1))
    w = v1.get_variable("w", [4, 1], initializer=v1.random_uniform_initializer(seed=2))
    loss = tf.reduce_mean(
        tf.square(tf.matmul(tf.reduce_mean(tf.nn.embedding_lookup(e, ids), 1), w)[:, 0] - t)
    )
    tv = v1.trainable_variables()
    gr, norm = tf.clip_by_global_norm(tf.gradients(loss, tv), 0.05)
    op = v1.train.AdagradOptimizer(0.1).apply_gradients(zip(gr, tv))
    with v1.Session() as s:
        s.run(v1.global_variables_initializer())
        r = np.random.RandomState(5)
        out = []
        for _k in range(20):
            a = r.randint(0, 30, (24, 5))
            out.append(float(s.run([loss, op], {ids: a, t: a[:, 0] / 30.0})[0]))
        done(None, None, e=s.run(e), w=s.run(w), out=out)
