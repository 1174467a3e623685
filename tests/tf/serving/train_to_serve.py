"""Trains a v1 model and a Keras model, saves both for serving, and prints their answers."""

from __future__ import annotations

import os
import sys

import numpy as np
import tensorflow as tf
from common import encode, place, result

v1 = tf.compat.v1
RANK, SIZE = place()
FOLDER = sys.argv[1]
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
QUESTION = np.array([[0.5, -0.25], [2.0, 1.0]], np.float32)


def model(x: tf.Tensor) -> tf.Tensor:
    w = v1.get_variable("w", initializer=np.zeros((2, 1), np.float32))
    b = v1.get_variable("b", initializer=np.zeros(1, np.float32))
    return tf.add(tf.matmul(x, w), b, name="answer")


def session_model() -> np.ndarray:
    """MonitoredTrainingSession trains and saves; a Saver restores, and the model is exported."""
    checkpoints = os.path.join(FOLDER, "checkpoints")
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 2])
        y = v1.placeholder(tf.float32, [None, 1])
        loss = tf.reduce_mean(tf.square(model(x) - y))
        step = v1.train.get_or_create_global_step()
        train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
        hooks = [v1.train.StopAtStepHook(20)]
        mine = {x: X[RANK::SIZE], y: (X[:, :1] * 3 + 1)[RANK::SIZE]}
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=checkpoints, hooks=hooks, save_checkpoint_steps=20
        ) as session:
            while not session.should_stop():
                session.run(train, mine)
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 2])
        answer = model(x)
        v1.train.Saver().restore(session, tf.train.latest_checkpoint(checkpoints))
        v1.saved_model.simple_save(
            session, os.path.join(FOLDER, "v1", "1"), {"x": x}, {"answer": answer}
        )
        return np.asarray(session.run(answer, {x: QUESTION}))


def keras_model() -> np.ndarray:
    made = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    made.compile(tf.keras.optimizers.Adam(0.1), "mse")
    made.fit(X, X[:, :1] * 3 + 1, batch_size=6, epochs=20, verbose=0)
    made.export(os.path.join(FOLDER, "keras", "1"), verbose=False)
    return np.asarray(made(QUESTION))


result({"v1": encode(session_model()), "keras": encode(keras_model())})
