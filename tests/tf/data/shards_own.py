"""Training on each rank's own batches.

Arguments: off, own (declared by the script), unsaid or per-rank; keras or tf_keras.

One process trains on the data of all ranks together.
"""

import sys

import numpy as np
import tensorflow as tf
from common import encode, place, result

MODE = sys.argv[1]
if sys.argv[2] == "tf_keras":
    import tf_keras as keras
else:
    import keras

RANK, SIZE = place()
ALONE = SIZE == 1
if MODE == "own" and hasattr(tf, "mpi"):
    tf.mpi.own_data()
RANDOM = np.random.RandomState(0)
X = RANDOM.randn(37, 3).astype("float32")
Y = RANDOM.randn(37, 2).astype("float32")
# off: the samples of a rank, and its batch size
PARTS = [(slice(0, 25), 10), (slice(25, 37), 3)]


def trained(fit, rate=0.1, own_rate=None):
    """`own_rate`: set after fit, if given; then two updates by the script itself."""
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.layers.InputLayer((3,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse", metrics=["mae"])
    history = fit(model).history
    values = {name: encode(np.array(value, np.float64)) for name, value in history.items()}
    if own_rate is not None:
        model.optimizer.learning_rate = own_rate
        model.train_on_batch(X[:8], Y[:8])
        pairs = [(tf.ones_like(variable), variable) for variable in model.trainable_variables]
        model.optimizer.apply_gradients(pairs)
    values["kernel"] = encode(model.get_weights()[0])
    return values


def places(given):
    """By step [position of the first sample, samples here, samples of the batch on all ranks]."""
    found = []

    class Noting(keras.Model):
        def train_step(self, data):
            from tensorflow.mpi._src.global_batch import batch

            if tf.executing_eagerly():
                part = batch.current()
                found.append([int(part.first_row()), len(data[0]), int(part.whole_rows())])
            return {"loss": tf.constant(0.0)}

    model = Noting()
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(given, verbose=0)
    return found


def dataset(part, batch, drop_remainder=False):
    return tf.data.Dataset.from_tensor_slices((X[part], Y[part])).batch(batch, drop_remainder)


def together(steps):
    """The data of all ranks, step by step, for as long as any rank has some."""
    while True:
        for step in range(steps):
            mine = [(X[part][step * size :][:size], Y[part][step * size :][:size])
                    for part, size in PARTS]  # fmt: skip
            yield tuple(np.concatenate(arrays) for arrays in zip(*mine))


def own_parts():
    if ALONE:
        both = trained(lambda m: m.fit(together(4), steps_per_epoch=4, epochs=2, verbose=0))
        return {"arrays": both, "dataset": both}
    part, batch = PARTS[RANK]
    return {
        "places": places(dataset(part, batch)),
        "arrays": trained(
            lambda m: m.fit(X[part], Y[part], batch_size=batch, epochs=2, shuffle=False, verbose=0)
        ),
        "dataset": trained(lambda m: m.fit(dataset(part, batch), epochs=2, verbose=0)),
    }


def batch_per_rank():
    times = 2 if ALONE else 1
    arguments = {"epochs": 2, "verbose": 0}
    whole = slice(0, 37)
    noisy = dataset(whole, 4 * times).map(lambda x, y: (x + tf.random.uniform([]) * 0, y))

    def schedule():
        return keras.optimizers.schedules.ExponentialDecay(0.1 * times, 3, 0.5)

    found = {} if ALONE else {"places": places(dataset(slice(0, 13), 4, drop_remainder=True))}
    return found | {
        "arrays": trained(
            lambda m: m.fit(X, Y, batch_size=4 * times, **arguments), 0.1 * times, own_rate=0.1
        ),
        "dataset": trained(lambda m: m.fit(dataset(whole, 4 * times), **arguments), schedule()),
        "from_rank_0": trained(lambda m: m.fit(noisy, **arguments), 0.1 * times),
    }


result(batch_per_rank() if MODE == "per-rank" else own_parts())
