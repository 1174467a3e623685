"""TensorFlow Similarity's first example: metric learning, pairs of the whole batch."""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow_similarity as tfsim
import tf_keras
from report import done

tf_keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)
labels = np.arange(192) % 6
images = (drawn.normal(size=(6, 8, 8, 1))[labels] + drawn.normal(0, 0.8, (192, 8, 8, 1))).astype(
    "f4"
)
inputs = tf_keras.Input((8, 8, 1))
x = tf_keras.layers.Conv2D(8, 3, activation="relu")(inputs)
x = tf_keras.layers.Flatten()(x)
model = tfsim.models.SimilarityModel(inputs, tfsim.layers.MetricEmbedding(16)(x))
model.compile(
    tf_keras.optimizers.Adam(1e-2), loss=tfsim.losses.MultiSimilarityLoss(distance="cosine")
)
history = model.fit(images, labels, batch_size=48, epochs=2, verbose=0)
done(
    history=history.history,
    weights=model.get_weights(),
    embeddings=model.predict(images, verbose=0),
)
