import keras
import numpy as np
import tensorflow as tf
from report import done

tf.config.run_functions_eagerly(True)
keras.utils.set_random_seed(21)
rng = np.random.default_rng(10)
X = [rng.normal(size=(50, 3)).astype("float32"), rng.integers(0, 7, (50, 4))]
Y = rng.normal(size=(50, 1)).astype("float32")
seen = []


class Two(keras.Model):
    def __init__(self):
        super().__init__()
        self.e = keras.layers.Embedding(7, 3, mask_zero=True)
        self.r = keras.layers.Bidirectional(keras.layers.GRU(3))
        self.d = keras.layers.Dense(1)

    def call(self, inputs):
        a, b = inputs
        seen.append(int(tf.executing_eagerly()))
        if tf.executing_eagerly() and float(tf.reduce_max(tf.abs(a))) > 100:
            a = a / 100
        return self.d(tf.concat([a, self.r(self.e(b))], 1))


m = Two()
m.compile(keras.optimizers.Adamax(0.02, clipnorm=1.0), "mse", metrics=["mae"])
h = m.fit(X, Y, batch_size=15, epochs=2, validation_data=(X, Y), verbose=0)
tf.config.run_functions_eagerly(False)
done(m, h, eager=min(seen), q=m.predict_on_batch([X[0][:4], X[1][:4]]))
