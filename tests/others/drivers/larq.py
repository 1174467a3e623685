"""Larq's MNIST example: a binarized network, latent weights, straight-through estimators."""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import larq as lq
import numpy as np
import tensorflow as tf
import tf_keras
from report import done

tf_keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)
images = drawn.uniform(-1, 1, (192, 12, 12, 1)).astype(np.float32)
labels = (images.mean((1, 2, 3)) > 0).astype(np.int64)
kwargs = {
    "input_quantizer": "ste_sign",
    "kernel_quantizer": "ste_sign",
    "kernel_constraint": "weight_clip",
}
model = tf_keras.Sequential(
    [
        lq.layers.QuantConv2D(
            8, 3, kernel_quantizer="ste_sign", kernel_constraint="weight_clip", use_bias=False,
            input_shape=(12, 12, 1),
        ),
        tf_keras.layers.MaxPooling2D(2),
        tf_keras.layers.BatchNormalization(scale=False),
        tf_keras.layers.Flatten(),
        lq.layers.QuantDense(2, use_bias=False, **kwargs),
        tf_keras.layers.BatchNormalization(scale=False),
        tf_keras.layers.Activation("softmax"),
    ]
)  # fmt: skip
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(images, labels, batch_size=32, epochs=2, shuffle=False, verbose=0)
done(history=history.history, weights=model.get_weights(), tensorflow=tf.__version__)
