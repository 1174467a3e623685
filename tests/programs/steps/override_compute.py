import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(110, 6)).astype("float32")
y = rng.integers(0, 3, 110)


class M(keras.Model):
    def __init__(self):
        super().__init__()
        self.a = keras.layers.Dense(8, "relu")
        self.b = keras.layers.Dense(3)
        self.tr = keras.metrics.Mean("my_loss")
        self.acc = keras.metrics.SparseCategoricalAccuracy("acc")
        self.count = tf.Variable(0, trainable=False)
        self.conf = keras.metrics.MeanIoU(3, name="iou")

    def call(self, x):
        return self.b(self.a(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        ce = tf.reduce_mean(
            keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)
        )
        l2 = tf.add_n([tf.nn.l2_loss(w) for w in self.trainable_weights]) * 1e-3
        conf = -0.05 * tf.reduce_mean(
            tf.reduce_sum(tf.nn.softmax(y_pred) * tf.nn.log_softmax(y_pred), -1)
        )
        self.tr.update_state(ce)
        self.count.assign_add(1)
        return ce + l2 + conf + sum(self.losses)

    def compute_metrics(self, x, y, y_pred, sample_weight):
        r = super().compute_metrics(x, y, y_pred, sample_weight)
        self.acc.update_state(y, y_pred)
        self.conf.update_state(y, tf.argmax(y_pred, -1))
        r.update(
            {
                "acc": self.acc.result(),
                "iou": self.conf.result(),
                "n": tf.cast(self.count, tf.float32),
            }
        )
        return r

    def reset_metrics(self):
        super().reset_metrics()
        self.acc.reset_state()
        self.conf.reset_state()

    def fit(self, *a, **k):
        k.setdefault("verbose", 0)
        return super().fit(*a, **k)

    def test_step(self, data):
        x, y = data
        p = self(x, training=False)
        self.acc.update_state(y, p)
        margin = tf.reduce_mean(tf.reduce_max(p, -1) - tf.reduce_mean(p, -1))
        return {"acc": self.acc.result(), "margin": margin}

    def predict_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        p = self(x, training=False)
        return {"logits": p, "label": tf.argmax(p, -1), "idx": tf.reduce_sum(x, 1)}


m = M()
m.compile(keras.optimizers.Adam(0.01))
h = m.fit(x, y, batch_size=25, epochs=3, validation_data=(x[:30], y[:30]))
p = m.predict(x, batch_size=16, verbose=0)
e = m.evaluate(x, y, verbose=0, batch_size=11)
done(m, h, p=p, e=e, c=int(m.count))
