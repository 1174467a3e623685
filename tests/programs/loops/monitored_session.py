import os

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
    X = tf.constant(x)
    w = v1.get_variable("w", [8, 1], initializer=v1.zeros_initializer())
    l = tf.reduce_mean(tf.square(tf.matmul(X, w) - y))
    gs = v1.train.get_or_create_global_step()
    op = v1.train.AdamOptimizer(0.05).minimize(l, global_step=gs)
    out = []
    with v1.train.MonitoredTrainingSession(
        checkpoint_dir=f"mon-{os.getpid()}",
        save_checkpoint_steps=5,
        hooks=[v1.train.StopAtStepHook(last_step=12)],
        log_step_count_steps=None,
    ) as s:
        while not s.should_stop():
            out.append(float(s.run([l, op])[0]))
    done(None, None, out=out)
