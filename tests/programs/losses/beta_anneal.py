import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(120, 8)).astype("float32")
beta = keras.Variable(0.0, trainable=False, dtype="float32", name="beta")


class KL(keras.layers.Layer):
    def call(self, inp):
        mu, lv = inp
        kl = -0.5 * tf.reduce_mean(tf.reduce_sum(1 + lv - tf.square(mu) - tf.exp(lv), 1))
        self.add_loss(beta * kl)
        return mu + 0.1 * lv


i = keras.Input((8,))
hdn = keras.layers.Dense(8, "tanh")(i)
mu = keras.layers.Dense(2)(hdn)
lv = keras.layers.Dense(2)(hdn)
z = KL()([mu, lv])
o = keras.layers.Dense(8)(z)
m = keras.Model(i, o)


class Anneal(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        beta.assign(min(1.0, epoch / 3))


m.compile(keras.optimizers.Adam(0.01), "mse")
h = m.fit(x, x, batch_size=25, epochs=5, verbose=0, callbacks=[Anneal()])
done(m, h, beta=float(beta.numpy()))
