import json
import random

import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
words = set("red green blue yellow black white grey pink brown cyan".split())
texts = [" ".join(random.sample(sorted(words), 4)) for _ in range(96)]
labels = [float("red" in t) for t in texts]
tv = keras.layers.TextVectorization(max_tokens=9, output_sequence_length=4)
tv.adapt(tf.data.Dataset.from_tensor_slices(texts).batch(10))
with open("vocab.json", "w") as f:
    json.dump(tv.get_vocabulary(), f)
with open("vocab.json") as f:
    vocab = json.load(f)
tags = list({t.split()[0] for t in texts})
lookup = keras.layers.StringLookup(vocabulary=tags, output_mode="one_hot")
tv2 = keras.layers.TextVectorization(vocabulary=vocab[2:], output_sequence_length=4)
ds = (
    tf.data.Dataset.from_tensor_slices((texts, labels))
    .map(lambda t, y: ((tv2(t), tf.reshape(lookup(tf.strings.split(t)[0]), [-1])), y))
    .batch(20)
)
a = keras.Input((4,), dtype="int64")
b = keras.Input((lookup.vocabulary_size(),))
e = keras.layers.Embedding(len(vocab), 6, mask_zero=True)(a)
z = keras.layers.GRU(5)(e)
o = keras.layers.Dense(1, "sigmoid")(keras.layers.Concatenate()([z, b]))
m = keras.Model((a, b), o)
m.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy", "AUC"])
h = m.fit(ds, epochs=3, verbose=0)
pipe = keras.Sequential(
    [
        keras.Input((), dtype="string"),
        tv,
        keras.layers.Embedding(len(vocab), 4),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]
)
pipe.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
h2 = pipe.fit(
    tf.constant(texts), np.array(labels), batch_size=20, epochs=2, verbose=0, shuffle=False
)
done(m, h, h2=h2.history, vocab=sorted(vocab), pw=pipe.get_weights())
