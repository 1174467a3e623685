import glob

import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(27)
X = np.random.default_rng(16).normal(size=(60, 4)).astype("float32")
writer = tf.summary.create_file_writer("logs/own")


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.d = keras.layers.Dense(1)

    def call(self, x):
        return self.d(x)

    def train_step(self, data):
        logs = super().train_step(data)
        with writer.as_default():
            tf.summary.scalar(
                "rate",
                self.optimizer.learning_rate * 1.0,
                tf.cast(self.optimizer.iterations, "int64"),
            )
        return logs


m = Net()
m.compile("ftrl", "mse")
board = keras.callbacks.TensorBoard("logs/board", histogram_freq=1, update_freq="batch")
saver = keras.callbacks.ModelCheckpoint("w.{epoch}.weights.h5", save_weights_only=True, save_freq=4)
h = m.fit(X, X[:, :1], batch_size=20, epochs=4, callbacks=[board, saver], verbose=0)
writer.flush()
values = []
for path in sorted(glob.glob("logs/own/*")):
    for event in tf.compat.v1.train.summary_iterator(path):
        values += [tf.make_ndarray(v.tensor) for v in event.summary.value]
done(m, h, values=values, saved=sorted(glob.glob("*.h5")))
