"""A rank is killed in fit, which cannot continue with fewer ranks."""

from __future__ import annotations

import os
import signal

import numpy as np
import tensorflow as tf

PERSON = int(os.environ["OMPI_COMM_WORLD_RANK"])


class Dies(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if PERSON == 1 and batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)


model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones([600, 4]), np.ones([600, 1]), batch_size=6, verbose=0, callbacks=[Dies()])
print("RESULT {}", flush=True)
