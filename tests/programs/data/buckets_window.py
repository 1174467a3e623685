import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
seqs = [rng.integers(1, 20, rng.integers(2, 17)).tolist() for _ in range(140)]
labels = [float(sum(s) / len(s) > 10) for s in seqs]


def gen():
    yield from zip(seqs, labels)


ds = tf.data.Dataset.from_generator(
    gen, output_signature=(tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.float32))
)
ds = ds.bucket_by_sequence_length(
    lambda s, l: tf.shape(s)[0], bucket_boundaries=[5, 9, 13], bucket_batch_sizes=[20, 14, 9, 5]
).shuffle(8, seed=2)
m = keras.Sequential(
    [
        keras.layers.Embedding(20, 6, mask_zero=True),
        keras.layers.Bidirectional(keras.layers.LSTM(5)),
        keras.layers.Dense(1, "sigmoid"),
    ]
)
m.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
h = m.fit(ds, epochs=2, verbose=0)
series = np.sin(np.arange(150) / 5).astype("float32")[:, None]
w = (
    tf.data.Dataset.from_tensor_slices(series)
    .window(11, shift=1, drop_remainder=True)
    .flat_map(lambda w: w.batch(11))
    .map(lambda w: (w[:-1], w[-1]))
    .shuffle(50, seed=1)
    .batch(16)
    .prefetch(1)
)
m2 = keras.Sequential([keras.Input((10, 1)), keras.layers.SimpleRNN(6), keras.layers.Dense(1)])
m2.compile("adam", "mse")
h2 = m2.fit(w, epochs=2, verbose=0)
ts = keras.utils.timeseries_dataset_from_array(
    series[:-10], series[10:], 10, batch_size=12, shuffle=True, seed=5
)
h3 = m2.fit(ts, epochs=2, verbose=0, validation_data=ts.take(3))
done(m, h, w2=m2.get_weights(), h3=h3.history, h2=h2.history)
