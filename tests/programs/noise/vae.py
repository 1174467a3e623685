"""A VAE that draws its latents in a layer, or in train_step."""

import tensorflow as tf
import variants
from report import done


def make_of(in_step):
    def make(keras):
        class VAE(keras.Model):
            def __init__(self):
                super().__init__()
                self.encoder = keras.Sequential(
                    [keras.Input((8,)), keras.layers.Dense(12, "tanh"), keras.layers.Dense(6)]
                )
                self.decoder = keras.Sequential(
                    [keras.Input((3,)), keras.layers.Dense(12, "tanh"), keras.layers.Dense(8)]
                )
                self.total = keras.metrics.Mean(name="total")
                self.kl = keras.metrics.Mean(name="kl")
                if keras.__name__ == "keras":
                    self.seeds = keras.random.SeedGenerator(7)

            @property
            def metrics(self):
                return [self.total, self.kl]

            def compile_for(self, keras, **how):
                self(tf.zeros((1, 8)))
                self.compile(variants.adam(keras), **how)

            def noise_like(self, mean):
                if keras.__name__ == "keras":
                    return keras.random.normal(tf.shape(mean), seed=self.seeds)
                return tf.random.normal(tf.shape(mean))

            def call(self, x):
                mean, spread = tf.split(self.encoder(x), 2, 1)
                if in_step:
                    return self.decoder(mean)
                z = mean + tf.exp(spread / 2) * self.noise_like(mean)
                return self.decoder(z), mean, spread

            def train_step(self, x):
                with tf.GradientTape() as tape:
                    if in_step:
                        mean, spread = tf.split(self.encoder(x), 2, 1)
                        z = mean + tf.exp(spread / 2) * self.noise_like(mean)
                        guess = self.decoder(z)
                    else:
                        guess, mean, spread = self(x, training=True)
                    error = tf.reduce_mean(tf.reduce_sum(tf.square(x - guess), 1))
                    kl = -0.5 * (1 + spread - tf.square(mean) - tf.exp(spread))
                    kl = tf.reduce_mean(tf.reduce_sum(kl, 1))
                    loss = error + kl
                weights = self.trainable_weights
                self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
                self.total.update_state(loss)
                self.kl.update_state(kl)
                return {metric.name: metric.result() for metric in self.metrics}

        return VAE()

    return make


def data(rows):
    return (variants.images(rows).reshape(rows, -1)[:, :8],)


done(
    in_step=variants.of(make_of(True), data),
    in_layer=variants.of(make_of(False), data),
    eager=variants.of(make_of(True), data, variants.EAGER, steps=10),
)
