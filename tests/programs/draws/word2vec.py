import random

import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
random.seed(3)
V = 30
sents = [[random.randrange(1, V) for _ in range(10)] for _ in range(20)]
t, c, l = [], [], []
table = (
    keras.preprocessing.sequence.make_sampling_table(V)
    if hasattr(keras, "preprocessing")
    and hasattr(keras.preprocessing.sequence, "make_sampling_table")
    else None
)
for s in sents:
    for i, w in enumerate(s):
        for j in (i - 1, i + 1):
            if 0 <= j < len(s):
                ctx = tf.constant([[s[j]]], tf.int64)
                neg, _, _ = tf.random.log_uniform_candidate_sampler(ctx, 1, 4, True, V)
                t.append(w)
                c.append(tf.concat([ctx[0], neg], 0).numpy())
                l.append([1, 0, 0, 0, 0])


class W2V(keras.Model):
    def __init__(self):
        super().__init__()
        self.t = keras.layers.Embedding(V, 8, name="t")
        self.c = keras.layers.Embedding(V, 8, name="c")

    def call(self, pair):
        a, b = pair
        return tf.einsum("be,bce->bc", self.t(a), self.c(b))


ds = (
    tf.data.Dataset.from_tensor_slices(((np.array(t), np.array(c)), np.array(l)))
    .shuffle(400)
    .batch(32, drop_remainder=True)
    .cache()
    .prefetch(tf.data.AUTOTUNE)
)
m = W2V()
m.compile("adam", keras.losses.CategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
h = m.fit(ds, epochs=3, verbose=0)

out = open("vectors.tsv", "w")
for r in m.t.get_weights()[0]:
    out.write("\t".join(map(str, r)) + "\n")
out.close()
v = np.loadtxt("vectors.tsv")
done(
    None,
    None,
    shape=list(v.shape),
    same=float(abs(v - m.t.get_weights()[0]).max()),
    keys=sorted(h.history),
    sum=float(v.sum()),
)
