import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
n = 160
rows = {
    "age": rng.integers(18, 80, n).astype("float32"),
    "city": rng.choice(["rome", "oslo", "lima", "bonn"], n),
    "income": rng.lognormal(size=n).astype("float32"),
    "job": rng.integers(0, 6, n),
}
y = (rows["age"] > 40).astype("float32")
ds = tf.data.Dataset.from_tensor_slices((rows, y)).shuffle(n)
fs = keras.utils.FeatureSpace(
    {
        "age": "float_discretized",
        "city": "string_categorical",
        "income": "float_normalized",
        "job": "integer_categorical",
    },
    crosses=[("city", "job")],
    crossing_dim=8,
    output_mode="concat",
)
fs.adapt(ds.map(lambda a, b: a))
train = ds.batch(32).map(lambda a, b: (fs(a), b))
inp = fs.get_encoded_features()
out = keras.layers.Dense(1, "sigmoid", kernel_initializer="zeros")(inp)
m = keras.Model(inp, out)
m.compile(keras.optimizers.SGD(0.0), "binary_crossentropy", metrics=["accuracy"])
h = m.fit(train, epochs=2, verbose=0)
full = keras.Model(fs.get_inputs(), out)
p = full.predict({k: tf.convert_to_tensor(v[:9]) for k, v in rows.items()}, verbose=0)
disc = keras.layers.Discretization(num_bins=5)
disc.adapt(rows["age"])
norm = keras.layers.Normalization()
norm.adapt(tf.data.Dataset.from_tensor_slices(rows["income"][:, None]).shuffle(n).batch(16))
done(None, h, p=p, bins=disc.bin_boundaries, mean=norm.mean.numpy(), var=norm.variance.numpy())
