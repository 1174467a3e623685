"""The Keras of old scripts: tf_keras and tensorflow.python.keras in Sessions; prints by case.

Runs unchanged on ranks and as a plain process. The argument `python.keras` selects TensorFlow's own
Keras, whose fit stock TensorFlow 2.21 can run only in this way.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, result, single_threaded_ops

v1 = tf.compat.v1
BATCH = 10
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(45, 6)).astype("f")
Y = np.tanh(X @ RANDOM.normal(size=(6, 1))).astype("f")


def library() -> tuple[Any, Any, Any]:
    """Its models, its layers, and its optimizers by name."""
    if "python.keras" in sys.argv[1:]:
        from tensorflow.python.keras import layers, models
        from tensorflow.python.keras.optimizer_v2 import adam, gradient_descent

        return models, layers, {"SGD": gradient_descent.SGD, "Adam": adam.Adam}
    import tf_keras

    legacy = tf_keras.optimizers.legacy
    return tf_keras.models, tf_keras.layers, {"SGD": legacy.SGD, "Adam": legacy.Adam}


def network(models: Any, layers: Any) -> Any:
    model = models.Sequential(
        [layers.Dense(8, activation="tanh", input_shape=(6,)), layers.Dense(1)]
    )
    random = np.random.default_rng(4)
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    return model


def fitted() -> dict[str, Any]:
    models, layers, optimizers = library()
    found = {}
    for name, make in optimizers.items():
        model = network(models, layers)
        model.compile(make(0.05, clipnorm=0.1), "mse", metrics=["mae"])
        history = model.fit(X, Y, BATCH, 2, verbose=0, validation_split=0.2, shuffle=False).history
        values = {key: encode(np.array(history[key], "f")) for key in sorted(history)}
        values["evaluate"] = encode(np.array(model.evaluate(X, Y, verbose=0), "f"))
        values["predict"] = encode(model.predict(X))
        weights = {f"{n}": encode(w) for n, w in enumerate(model.get_weights())}
        found[name] = {**weights, **values}
    return found


def saved() -> dict[str, Any]:
    """Files of callbacks, in a folder with a random name on each rank."""
    models, layers, optimizers = library()
    if "python.keras" in sys.argv[1:]:
        from tensorflow.python.keras import callbacks
    else:
        from tf_keras import callbacks
    folder = Path(tempfile.mkdtemp())
    used = [
        callbacks.TensorBoard(str(folder / "board"), profile_batch=0),
        callbacks.CSVLogger(str(folder / "log.csv")),
    ]
    if "tf_keras" in sys.argv[1:]:  # TensorFlow's own cannot save weights here, even in stock
        used.append(callbacks.ModelCheckpoint(str(folder / "{epoch}"), save_weights_only=True))
    model = network(models, layers)
    model.compile(optimizers["SGD"](0.05), "mse")
    model.fit(X, Y, BATCH, 2, verbose=0, shuffle=False, callbacks=used)
    names = sorted(os.listdir(folder))
    events = len([path for path in (folder / "board").rglob("*") if "tfevents" in path.name])
    rows = (folder / "log.csv").read_text().splitlines()
    links = [path.stat().st_nlink for path in folder.glob("2.data*")]
    shutil.rmtree(folder)
    return {"names": [*names, events, len(rows), refused(optimizers["SGD"](0.1))], "links": links}


def refused(optimizer: Any) -> str:
    """Its own error for a tensor passed instead of a variable."""
    try:
        optimizer.apply_gradients([(tf.constant(1.0), tf.constant(2.0))])
    except Exception as error:
        return type(error).__name__
    return "nothing"


def looped() -> dict[str, Any]:
    """Its optimizers in a custom loop with eager execution."""
    models, layers, optimizers = library()
    found = {}
    for name, make in optimizers.items():
        model = network(models, layers)
        optimizer = make(0.05)

        def step(x: Any, y: Any, model: Any = model, optimizer: Any = optimizer) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

        run = tf.function(step)
        for x, y in tf.mpi.shard(tf.data.Dataset.from_tensor_slices((X[:40], Y[:40])).batch(20)):
            run(x, y)
        found[name] = {f"{n}": encode(w) for n, w in enumerate(model.get_weights())}
    return found


def main() -> None:
    single_threaded_ops()
    if "loop" in sys.argv[1:]:
        return result(looped())
    v1.disable_eager_execution()
    result({**fitted(), "saved": saved()})


main()
