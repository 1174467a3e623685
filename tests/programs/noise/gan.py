"""A GAN: twice as many latents as samples, noise of [2n, 1] on labels, dropout in the critic."""

import tensorflow as tf
import variants
from report import done


def make(keras):
    class GAN(keras.Model):
        def __init__(self):
            super().__init__()
            self.generator = keras.Sequential(
                [
                    keras.Input((4,)),
                    keras.layers.Dense(12),
                    keras.layers.BatchNormalization(),
                    keras.layers.LeakyReLU(),
                    keras.layers.Dense(8),
                ]
            )
            self.critic = keras.Sequential(
                [
                    keras.Input((8,)),
                    keras.layers.Dense(12, "tanh"),
                    keras.layers.Dropout(0.3),
                    keras.layers.Dense(1),
                ]
            )
            self.of_critic, self.of_generator = (keras.metrics.Mean(name=n) for n in "cg")
            if keras.__name__ == "keras":
                self.seeds = keras.random.SeedGenerator(3)

        @property
        def metrics(self):
            return [self.of_critic, self.of_generator]

        def call(self, z):
            return self.critic(self.generator(z))

        def compile_for(self, keras, **how):
            self(tf.zeros((1, 4)))
            self.compile(**how)
            self.first, self.second = variants.adam(keras), variants.adam(keras)
            self.error = keras.losses.BinaryCrossentropy(from_logits=True)

        def drawn(self, kind, shape):
            if keras.__name__ == "keras":
                return getattr(keras.random, kind)(shape, seed=self.seeds)
            return getattr(tf.random, kind)(shape)

        def train_step(self, real):
            n = tf.shape(real)[0]
            made = self.generator(self.drawn("normal", (n, 4)), training=True)
            both = tf.concat([made, real], 0)
            marks = tf.concat([tf.ones((n, 1)), tf.zeros((n, 1))], 0)
            marks += 0.05 * self.drawn("uniform", (2 * n, 1))
            with tf.GradientTape() as tape:
                loss = self.error(marks, self.critic(both, training=True))
            weights = self.critic.trainable_weights
            self.first.apply_gradients(zip(tape.gradient(loss, weights), weights))
            z = self.drawn("normal", (n, 4))
            with tf.GradientTape() as tape:
                made = self.critic(self.generator(z, training=True), training=True)
                cheat = self.error(tf.zeros((n, 1)), made)
            weights = self.generator.trainable_weights
            self.second.apply_gradients(zip(tape.gradient(cheat, weights), weights))
            self.of_critic.update_state(loss)
            self.of_generator.update_state(cheat)
            return {metric.name: metric.result() for metric in self.metrics}

    return GAN()


def data(rows):
    return (variants.images(rows).reshape(rows, -1)[:, :8],)


done(variants=variants.of(make, data))
