"""Rank 1 gets SIGTERM, or with TEST_TOLD=launcher mpirun does, in the 7th step of fit (argv: keras
or tf_keras). TEST_TOLD=nested: after another fit inside it."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time

import numpy as np
import tensorflow as tf

if sys.argv[1] == "tf_keras":
    import tf_keras as keras
else:
    import keras

STEP = 7
X = np.random.default_rng(0).normal(size=[160, 3]).astype(np.float32)
DATA = X, X.sum(1, keepdims=True)


def digest(model):
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()


class Told(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps >= STEP:
            print(f"STEP {self.steps} {digest(self.model)}", flush=True)
        if self.steps == 3 and os.environ.get("TEST_TOLD") == "nested":
            new_model().fit(*DATA, batch_size=80, verbose=0)
        if self.steps == STEP and tf.mpi.rank() == 1:
            print("AT", time.time(), flush=True)
            # The folder that rank 0 checked at the start is gone.
            if os.environ.get("TEST_TOLD") == "full":
                folder = os.environ["TF_MPI_SAVE_ON_SIGTERM"]
                os.rmdir(folder)
                open(folder, "w").close()
            launcher = os.environ.get("TEST_TOLD") == "launcher"
            os.kill(os.getppid() if launcher else os.getpid(), signal.SIGTERM)


def new_model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.layers.Input([3]), keras.layers.Dense(5), keras.layers.Dense(1)], name="told"
    )
    model.compile("adam", "mse")
    return model


if len(sys.argv) > 2:  # a later run: reads what was saved
    model = new_model()
    model.train_on_batch(np.ones([4, 3], np.float32), np.ones([4, 1], np.float32))
    model.load_weights(sys.argv[2])
    slots = sum(float(np.abs(v.numpy()).sum()) for v in model.optimizer.variables[2:])
    print(f"READ {int(model.optimizer.iterations)} {digest(model)} {slots > 0}", flush=True)
else:
    new_model().fit(*DATA, batch_size=8, epochs=100, verbose=0, callbacks=[Told()])
    print("NOT ENDED", flush=True)
