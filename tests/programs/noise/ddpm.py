"""A diffusion model that draws a time step and noise for each sample."""

import numpy as np
import tensorflow as tf
import variants
from report import done

KEPT = np.cumprod(1 - np.linspace(1e-4, 0.2, 20)).astype("float32")


def make(keras):
    class Diffusion(keras.Model):
        def __init__(self):
            super().__init__()
            layers = keras.layers
            self.net = keras.Sequential(
                [keras.Input((9,)), layers.Dense(16, "swish"), layers.Dropout(0.1), layers.Dense(8)]
            )
            self.kept = tf.constant(KEPT)

        def call(self, x):
            return self.net(x)

        def compile_for(self, keras, **how):
            self(tf.zeros((1, 9)))
            self.compile(variants.adam(keras), "mse", **how)

        def train_step(self, x):
            n = tf.shape(x)[0]
            t = tf.random.uniform((n,), 0, 20, dtype=tf.int32)
            noise = tf.random.normal(tf.shape(x))
            kept = tf.gather(self.kept, t)[:, None]
            with tf.GradientTape() as tape:
                mixed = tf.sqrt(kept) * x + tf.sqrt(1 - kept) * noise
                time = tf.cast(t, tf.float32)[:, None] / 20
                guess = self.net(tf.concat([mixed, time], 1), training=True)
                loss = tf.reduce_mean(tf.square(noise - guess))
            weights = self.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return {"loss": loss}

    return Diffusion()


def data(rows):
    return (variants.images(rows).reshape(rows, -1)[:, :8],)


done(variants=variants.of(make, data), eager=variants.of(make, data, variants.EAGER, steps=10))
