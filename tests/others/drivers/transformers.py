"""Transformers' text classification in TensorFlow: a small BERT from its configuration."""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tf_keras
from report import done
from transformers import BertConfig, TFBertForSequenceClassification

tf_keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)
tokens = drawn.integers(3, 60, (96, 12))
mask = (np.arange(12) < drawn.integers(4, 13, (96, 1))).astype(np.int64)
labels = (tokens[:, 0] > 30).astype(np.int64)
config = BertConfig(
    vocab_size=60,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
model = TFBertForSequenceClassification(config)
batches = tf.data.Dataset.from_tensor_slices(
    ({"input_ids": tokens, "attention_mask": mask}, labels)
).batch(16)
model.compile(optimizer=tf_keras.optimizers.Adam(1e-3))  # the model's own loss
history = model.fit(batches, epochs=2, verbose=0)
done(
    history=history.history,
    weights=model.get_weights(),
    logits=model.predict(batches, verbose=0).logits,
)
