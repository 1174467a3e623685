import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(25)
rng = np.random.default_rng(14)
X = rng.normal(size=(66, 6)).astype("float32")
Y = np.sin(X[:, :2]).astype("float32")


@tf.custom_gradient
def reversed_gradient(x):
    return tf.identity(x), lambda g: -0.1 * g


class Adversarial(keras.Model):
    def __init__(self):
        super().__init__()
        self.body = keras.layers.Dense(7, "tanh")
        self.head = keras.layers.Dense(2)
        self.domain = keras.layers.Dense(1)

    def call(self, x):
        features = tf.recompute_grad(self.body)(x) if self.body.built else self.body(x)
        return self.head(features), self.domain(reversed_gradient(features))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            out, domain = self(x, training=True)
            fit = tf.reduce_mean(tf.reduce_sum(tf.square(out - y), -1))
            side = tf.cast(x[:, :1] > 0, tf.float32)
            other = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=side, logits=domain)
            )
            loss = fit + 0.5 * other + tf.add_n([1e-3 * tf.nn.l2_loss(w) for w in self.weights])
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            (tf.clip_by_value(g, -1, 1), v) for g, v in zip(grads, self.trainable_variables)
        )
        return {"fit": fit, "other": other, "norm": tf.linalg.global_norm(grads)}


m = Adversarial()
m.compile(keras.optimizers.Lion(0.003))
h = m.fit(X, Y, batch_size=22, epochs=3, verbose=0)
done(m, h)
