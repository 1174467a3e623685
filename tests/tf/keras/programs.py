"""Programs that differ by rank, one after another. Arguments: keras or tf_keras, then names.

Prints the result of fit() by name: "trained", or the error.
"""

import os
import sys

import numpy as np
import tensorflow as tf
from common import result

if sys.argv[1] == "tf_keras":
    import tf_keras as keras
else:
    import keras

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
L = keras.layers
X, Y = np.ones((16, 4), "f"), np.ones((16, 1), "f")
WORDS = tf.constant([["a b"], ["b c"]] * 8)


def pick(first, second):
    return second if RANK else first


def model(act="relu", units=4, l2=0.1):
    inputs = keras.Input((4,))
    hidden = L.Dense(units, act, kernel_regularizer=keras.regularizers.L2(l2))(inputs)
    return keras.Model(inputs, L.Dense(1)(hidden))


def after(layer, dtype="float32", shape=(4,)):
    inputs = keras.Input(shape, dtype=dtype)
    hidden = layer(inputs)
    if dtype == "string":
        hidden = L.Flatten()(L.Embedding(9, 2)(hidden))
    return keras.Model(inputs, L.Dense(1)(hidden))


def deep(layers):
    return keras.Sequential([keras.Input((4,)), *(L.Dense(4) for _ in range(layers)), L.Dense(1)])


def wired():
    inputs = keras.Input((4,))
    a = L.Dense(4)(inputs)
    return keras.Model(inputs, L.Dense(1)(L.Add()([L.Dense(4)(a), pick(a, inputs)])))


def normalized():
    layer = L.Normalization()
    layer.adapt(np.random.default_rng(RANK).normal(size=(50, 4)))
    return after(layer)


def vectorized():
    layer = L.TextVectorization(output_sequence_length=3)
    layer.adapt(pick(["a b c"], ["b c c d"]))
    return after(layer, "string", (1,))


def half_trained():
    made = model()
    made.layers[1].trainable = pick(True, False)
    return made


def named():
    pick(lambda units: None, L.Dense)(3)
    return model()


class Own(keras.Model):
    def __init__(self, folder):
        super().__init__()
        self.dense = L.Dense(1)
        self.factor = pick(1.0, 2.0)
        self.folder = folder

    def call(self, inputs):
        return self.dense(inputs) * self.factor


def loss_with(factor):
    return lambda true, predicted: tf.reduce_mean(factor * (true - predicted) ** 2)


POWERS = (
    lambda true, predicted: tf.reduce_mean((true - predicted) ** 2),
    lambda true, predicted: tf.reduce_mean((true - predicted) ** 4),
)
SGD = keras.optimizers.SGD
NOTED: list = []


def noting_loss():
    noted = NOTED

    def loss(true, predicted):
        noted.append(RANK)  # must not matter
        return tf.reduce_mean((true - predicted) ** 2)

    return loss


CASES = {
    "same": (model, {"loss": noting_loss}, {}),
    "activation": (lambda: model(pick("relu", "tanh")), {}, {}),
    "l2": (lambda: model(l2=pick(0.125, 0.25)), {}, {}),
    "units": (lambda: model(units=pick(4, 5)), {}, {}),
    "layers": (lambda: deep(pick(1, 2)), {}, {}),
    "wiring": (wired, {}, {}),
    "optimizer": (model, {"optimizer": lambda: pick(SGD, keras.optimizers.Adam)(0.1)}, {}),
    "rate": (model, {"optimizer": lambda: SGD(pick(0.125, 0.25))}, {}),
    "momentum": (model, {"optimizer": lambda: SGD(0.1, momentum=pick(0.125, 0.25))}, {}),
    "loss": (model, {"loss": lambda: pick("mse", "mae")}, {}),
    "own loss": (model, {"loss": lambda: loss_with(pick(1.0, 2.0))}, {}),
    "code": (model, {"loss": lambda: pick(*POWERS)}, {}),
    "metrics": (model, {"metrics": lambda: pick(["mae"], ["mse"])}, {}),
    "lambda": (
        lambda: after(L.Lambda(pick(lambda t: t + 1, lambda t: t - 1), output_shape=(4,))), {}, {},
    ),
    "epochs": (model, {}, {"epochs": pick(1, 2)}),
    "class_weight": (model, {}, {"class_weight": {0: 1.0, 1: pick(1.0, 2.0)}}),
    "batch_size": (model, {}, {"batch_size": pick(4, 8)}),
    "validation": (model, {}, {"validation_data": pick(None, (X, Y))}),
    "normalization": (normalized, {}, {}),
    "vocabulary": (
        lambda: after(L.StringLookup(vocabulary=pick(["a", "b"], ["b", "a"])), "string", (1,)),
        {}, {},
    ),
    "vectorization": (vectorized, {}, {}),
    "trainable": (half_trained, {}, {}),
    "names": (named, {}, {}),
    "own attribute": (lambda: Own(f"/tmp/{RANK}"), {}, {}),
}  # fmt: skip


def said_by(case):
    make, compiled, call = CASES[case]
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    arguments = {"optimizer": lambda: SGD(0.1), "loss": lambda: "mse", **compiled}
    made = make()
    made.compile(**{name: value() for name, value in arguments.items()})
    x = WORDS if case in ("vocabulary", "vectorization") else X
    try:
        made.fit(x, Y, verbose=0, **call)
        made.evaluate(x, Y, verbose=0)
    except ValueError as error:
        return str(error)
    return "trained"


result({case: said_by(case) for case in sys.argv[2:] or CASES})
