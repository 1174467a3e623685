"""Two views of each sample, with one noise tensor for both: [2n, d]."""

import tensorflow as tf
import variants
from report import done


def make(keras):
    class Views(keras.Model):
        def __init__(self):
            super().__init__()
            self.net = keras.Sequential(
                [keras.Input((8,)), keras.layers.Dense(12, "tanh"), keras.layers.Dense(6)]
            )
            self.error = keras.metrics.Mean(name="contrast")

        @property
        def metrics(self):
            return [self.error]

        def call(self, x):
            return self.net(x)

        def compile_for(self, keras, **how):
            self(tf.zeros((1, 8)))
            self.compile(variants.adam(keras), **how)

        def train_step(self, x):
            n = tf.shape(x)[0]
            views = tf.concat([x, x], 0)
            views += tf.random.normal(tf.shape(views), stddev=0.1)
            kept = tf.random.uniform((2 * n, 8)) > 0.1
            views = tf.where(kept, views, 0.0)
            with tf.GradientTape() as tape:
                z = tf.math.l2_normalize(self.net(views, training=True), 1)
                first, second = z[:n], z[n:]
                alike = tf.matmul(first, second, transpose_b=True) / 0.2
                loss = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(n), alike)
                loss = tf.reduce_mean(loss)
            weights = self.net.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            self.error.update_state(loss)
            return {"contrast": self.error.result()}

    return Views()


def data(rows):
    return (variants.images(rows).reshape(rows, -1)[:, :8],)


done(variants=variants.of(make, data))
