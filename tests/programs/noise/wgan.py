"""WGAN-GP: latents, and for each sample a random point for the gradient penalty."""

import tensorflow as tf
import variants
from report import done


def make(keras):
    class WGAN(keras.Model):
        def __init__(self):
            super().__init__()
            layers = keras.layers
            self.generator = keras.Sequential(
                [keras.Input((4,)), layers.Dense(12, "tanh"), layers.Dense(8)]
            )
            self.critic = keras.Sequential(
                [keras.Input((8,)), layers.Dense(12, "tanh"), layers.Dense(1)]
            )

        def call(self, z):
            return self.critic(self.generator(z))

        def compile_for(self, keras, **how):
            self(tf.zeros((1, 4)))
            self.compile(**how)
            self.first, self.second = variants.adam(keras), variants.adam(keras)

        def train_step(self, real):
            n = tf.shape(real)[0]
            for _ in range(2):
                z = tf.random.normal(shape=(n, 4))
                with tf.GradientTape() as tape:
                    made = self.generator(z, training=True)
                    mix = tf.random.uniform([n, 1], 0.0, 1.0)
                    between = real + mix * (made - real)
                    with tf.GradientTape() as inner:
                        inner.watch(between)
                        guess = self.critic(between, training=True)
                    slope = tf.sqrt(
                        tf.reduce_sum(tf.square(inner.gradient(guess, [between])[0]), 1) + 1e-9
                    )
                    penalty = tf.reduce_mean((slope - 1.0) ** 2)
                    loss = tf.reduce_mean(self.critic(made)) - tf.reduce_mean(self.critic(real))
                    loss += 10 * penalty
                weights = self.critic.trainable_weights
                self.first.apply_gradients(zip(tape.gradient(loss, weights), weights))
            z = tf.random.normal(shape=(n, 4))
            with tf.GradientTape() as tape:
                cheat = -tf.reduce_mean(self.critic(self.generator(z)))
            weights = self.generator.trainable_weights
            self.second.apply_gradients(zip(tape.gradient(cheat, weights), weights))
            return {"critic": loss, "generator": cheat}

    return WGAN()


def data(rows):
    return (variants.images(rows).reshape(rows, -1)[:, :8],)


done(variants=variants.of(make, data))
