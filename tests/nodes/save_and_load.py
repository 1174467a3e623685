"""Saves a model in the folder given as first argument, and loads it again."""

import os
import sys

import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Input([4]), tf.keras.layers.Dense(2)])
model.compile("sgd", "mse")
os.makedirs(sys.argv[1], exist_ok=True)
path = os.path.join(sys.argv[1], "model.keras")
model.save(path)
tf.keras.models.load_model(path)
print("LOADED", flush=True)
