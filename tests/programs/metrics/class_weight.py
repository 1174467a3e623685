import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(150, 5)).astype("float32")
y = rng.integers(0, 3, 150)
x[np.arange(150), y] += 1
sw = rng.uniform(0.1, 2, 150).astype("float32")
m = keras.Sequential(
    [keras.Input((5,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")]
)
m.compile(
    "adam",
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
    weighted_metrics=["accuracy", keras.metrics.SparseCategoricalCrossentropy(name="ce")],
)
counts = np.bincount(y)
cw = {i: len(y) / (3 * c) for i, c in enumerate(counts)}
h = m.fit(
    x,
    y,
    batch_size=32,
    epochs=3,
    verbose=0,
    class_weight=cw,
    validation_data=(x[:37], y[:37], sw[:37]),
)
ds = tf.data.Dataset.from_tensor_slices((x, y, sw)).shuffle(150, seed=4).batch(32)
h2 = m.fit(
    ds, epochs=2, verbose=0, validation_data=(x[100:], y[100:], sw[100:]), validation_batch_size=7
)
m.compile(
    "sgd",
    keras.losses.CategoricalFocalCrossentropy(),
    metrics=[
        keras.metrics.TopKCategoricalAccuracy(2),
        keras.metrics.F1Score(average="macro"),
        keras.metrics.AUC(),
    ],
)
h3 = m.fit(
    x, keras.utils.to_categorical(y, 3), sample_weight=sw, batch_size=32, epochs=2, verbose=0
)
ev = m.evaluate(
    x,
    keras.utils.to_categorical(y, 3),
    sample_weight=sw,
    batch_size=13,
    verbose=0,
    return_dict=True,
)
done(m, h, h2={k: v for k, v in h2.history.items() if k.startswith("val")}, ev=ev)
