"""TensorFlow Recommenders' retrieval tutorial: two towers and the factorized top-K metric."""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
import tf_keras
from report import done

tf_keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)
users = drawn.integers(0, 30, 300).astype(str)
movies = drawn.integers(0, 40, 300).astype(str)
ratings = tf.data.Dataset.from_tensor_slices({"user": users, "movie": movies})
titles = tf.data.Dataset.from_tensor_slices(np.unique(movies))


def tower(names):
    lookup = tf_keras.layers.StringLookup(vocabulary=np.unique(names), mask_token=None)
    return tf_keras.Sequential([lookup, tf_keras.layers.Embedding(lookup.vocabulary_size(), 8)])


class Retrieval(tfrs.Model):
    def __init__(self):
        super().__init__()
        self.user, self.movie = tower(users), tower(movies)
        self.task = tfrs.tasks.Retrieval(
            metrics=tfrs.metrics.FactorizedTopK(candidates=titles.batch(16).map(self.movie))
        )

    def compute_loss(self, features, training=False):
        return self.task(self.user(features["user"]), self.movie(features["movie"]))


model = Retrieval()
model.compile(optimizer=tf_keras.optimizers.Adagrad(0.1))
history = model.fit(ratings.batch(50), epochs=2, verbose=0)
found = model.evaluate(ratings.batch(60), return_dict=True, verbose=0)
# A step's metric reads the candidates' weights before or after their update, in no fixed order.
losses = {name: history.history[name] for name in history.history if "top_k" not in name}
done(history=losses, evaluated=found, weights=model.get_weights())
