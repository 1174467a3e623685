"""What a script draws without a seed, in every possible way; and what a step draws."""

import os
import random
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf
from common import result

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))


def of_the_host():
    time.sleep(RANK * 1.1)  # so that clocks differ
    if RANK == 0:  # draws elsewhere on one rank must not affect the others
        for _ in range(3):
            random.Random(), np.random.default_rng(), tf.random.normal([2])
    drawn: dict = {"random": random.random(), "numpy": np.random.rand()}
    random.seed(None)
    np.random.seed(None)
    drawn |= {"random anew": random.random(), "numpy anew": np.random.rand()}
    drawn["Random"] = [random.Random().random() for _ in range(2)]
    drawn["default_rng"] = [np.random.default_rng().random() for _ in range(2)]
    drawn["RandomState"] = np.random.RandomState().rand()
    drawn["SeedSequence"] = int(np.random.SeedSequence().generate_state(1)[0])
    np.random.seed(int(time.time() * 1e3) % 2**32)
    drawn["numpy by the clock"] = np.random.rand()
    random.seed(time.time())
    drawn["random by the clock"] = random.random()
    drawn["default_rng by the clock"] = np.random.default_rng(time.time_ns()).random()
    drawn["a set"] = list({f"word {i}" for i in range(20)})
    return drawn


def of_tensorflow():
    import keras
    import tf_keras

    @tf.function
    def traced():
        return tf.random.normal([2])

    def shuffled():
        return [int(i) for i in tf.data.Dataset.range(20).shuffle(20)]

    drawn = {"eager": [tf.random.normal([]).numpy().tolist() for _ in range(2)]}
    tf.keras.backend.clear_session()
    drawn["eager"] += [tf.random.normal([]).numpy().tolist() for _ in range(2)]
    drawn["traced"] = [traced().numpy().tolist() for _ in range(2)]
    drawn["dataset"] = [shuffled(), shuffled()]
    drawn["generator"] = tf.random.Generator.from_non_deterministic_state().normal([2]).numpy()
    drawn["global generator"] = tf.random.get_global_generator().normal([2]).numpy()
    drawn["keras"] = keras.random.normal((2,)).numpy()
    drawn["initial"] = keras.layers.Dense(2)(tf.ones((1, 2))).numpy()
    drawn["tf_keras"] = tf_keras.layers.Dense(2)(tf.ones((1, 2))).numpy()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        drawn["session"] = session.run(tf.random.uniform([2]))
    tf.random.set_seed(int(time.time()))
    drawn["by the clock"] = tf.random.normal([2]).numpy()
    return {name: np.asarray(value).tolist() for name, value in drawn.items()}


def different_names():
    return {"name": os.path.basename(tempfile.mktemp()), "bytes": os.urandom(4).hex()}


result({"host": of_the_host(), "tensorflow": of_tensorflow(), "own": different_names(),
        "started with": sys.argv[1:]})  # fmt: skip
