import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(22)
rng = np.random.default_rng(11)
S = rng.integers(1, 9, (60, 5))
T = np.concatenate([np.zeros((60, 1), int), S[:, ::-1]], 1)


class Seq2Seq(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed = keras.layers.Embedding(9, 6)
        self.encoder = keras.layers.GRU(8, return_state=True)
        self.cell = keras.layers.GRUCell(8)
        self.out = keras.layers.Dense(9)
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="acc")

    def decode(self, source, target, teach):
        _, state = self.encoder(self.embed(source))
        token, logits = target[:, 0], []
        for t in range(target.shape[1] - 1):
            h, (state,) = self.cell(self.embed(token), [state])
            logits.append(self.out(h))
            token = target[:, t + 1] if teach else tf.argmax(logits[-1], -1, tf.int32)
        return tf.stack(logits, 1)

    def train_step(self, data):
        (source, target), _, _ = keras.utils.unpack_x_y_sample_weight(data)
        target = tf.cast(target, tf.int32)
        with tf.GradientTape() as tape:
            logits = self.decode(source, target, True)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(target[:, 1:], logits)
            loss = tf.reduce_sum(each) / tf.cast(tf.size(each), tf.float32)
        grads, _ = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 1.0)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        self.accuracy.update_state(target[:, 1:], logits)
        return {"loss": loss, "acc": self.accuracy.result()}

    def call(self, inputs):
        return self.decode(inputs[0], tf.cast(inputs[1], tf.int32), False)


m = Seq2Seq()
m.compile(keras.optimizers.Adam(0.01))
h = m.fit((S, T), batch_size=25, epochs=3, verbose=0)
done(m, h, p=m.predict((S[:6], T[:6]), verbose=0).argmax(-1))
