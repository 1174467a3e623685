import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(4)
rng = np.random.default_rng(1)
users = rng.permutation(np.arange(100, 160))
clicks = rng.choice(users, 400)
y = (clicks % 3 == 0).astype("float32")[:, None]


def dense_ids(values):
    keys = tf.constant(values, tf.int64)
    ids = tf.range(len(values), dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, ids), -1)


table = dense_ids(users)
words = tf.lookup.StaticVocabularyTable(
    tf.lookup.KeyValueTensorInitializer(tf.constant(["even", "odd"]), tf.range(2, dtype=tf.int64)),
    num_oov_buckets=3,
)
bias = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, tf.zeros([2]))
bias.insert(tf.constant(users[:9], tf.int64), tf.random.normal([9, 2], seed=2))


def features(user, label):
    name = tf.where(user % 2 == 0, "even", tf.where(user % 5 == 0, "five", "odd"))
    more = tf.ensure_shape(bias.lookup(user), [2])
    return {"user": table.lookup(user), "kind": words.lookup(name), "bias": more}, label


ds = tf.data.Dataset.from_tensor_slices((clicks.astype("int64"), y)).shuffle(400)
ds = ds.map(features, num_parallel_calls=tf.data.AUTOTUNE).batch(30).prefetch(2)
user = keras.Input((), dtype="int64", name="user")
kind = keras.Input((), dtype="int64", name="kind")
extra = keras.Input((2,), name="bias")
x = keras.layers.Concatenate()(
    [keras.layers.Embedding(60, 4)(user), keras.layers.Embedding(5, 2)(kind), extra]
)
out = keras.layers.Dense(1, "sigmoid")(keras.layers.Dense(8, "tanh")(x))
m = keras.Model({"user": user, "kind": kind, "bias": extra}, out)
m.compile("adam", "binary_crossentropy", metrics=["accuracy"])
h = m.fit(ds, epochs=3, verbose=0)
done(m, h, e=m.evaluate(ds, verbose=0))
