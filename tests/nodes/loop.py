"""Trains until it is killed, on inputs that differ by rank."""

import time

import tensorflow as tf

weights = tf.Variable(tf.ones([1000]))
optimizer = tf.keras.optimizers.SGD(0.001)
gradient = tf.ones([1000]) * (tf.mpi.rank() + 1)
for step in range(1_000_000):
    optimizer.apply_gradients([(gradient, weights)])
    if step == 20:
        print(f"TRAINS {time.time()}", flush=True)
