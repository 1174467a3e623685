import time

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
with tf.Graph().as_default():
    v1.set_random_seed(4)
    ids = v1.placeholder(tf.int32, [None])
    e = v1.get_variable("e", [40, 6], initializer=v1.random_uniform_initializer(seed=1))
    w = v1.get_variable("w", [40, 6], initializer=v1.random_uniform_initializer(seed=2))
    b = v1.get_variable("b", [40], initializer=v1.zeros_initializer())
    h = tf.nn.embedding_lookup(e, ids)
    l = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=(ids + 1) % 40, logits=tf.matmul(h, w, transpose_b=True) + b
        )
    )
    gs = v1.train.get_or_create_global_step()
    lr = v1.train.exponential_decay(0.5, gs, 5, 0.9)
    o = v1.train.MomentumOptimizer(lr, 0.9)
    gv = o.compute_gradients(l)
    gv = [(tf.clip_by_norm(g, 0.5), v) for g, v in gv]
    op = o.apply_gradients(gv, global_step=gs)
    sv = v1.train.Saver()
    with v1.Session() as s:
        s.run(v1.global_variables_initializer())
        r = np.random.RandomState(1)
        out = [float(s.run([l, op], {ids: r.randint(0, 40, 20)})[0]) for _ in range(15)]
        p = sv.save(s, f"ck/m-{time.time():.0f}", global_step=gs)
        sv.restore(s, p)
        done(None, None, e=s.run(e), out=out, gs=int(s.run(gs)))
