import numpy as np
import tensorflow as tf
from report import done

tf.keras.utils.set_random_seed(2)
rng = np.random.default_rng(0)
V = 12
src = rng.integers(1, V, size=(128, 6))
src[:, 4:] *= rng.integers(0, 2, size=(128, 2))
tgt = np.concatenate([np.ones((128, 1), int), src[:, ::-1]], 1)
ds = tf.data.Dataset.from_tensor_slices((src, tgt)).shuffle(128).batch(32, drop_remainder=True)


class Encoder(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.emb = tf.keras.layers.Embedding(V, 8)
        self.gru = tf.keras.layers.GRU(8, return_sequences=True, return_state=True)

    def call(self, x):
        return self.gru(self.emb(x))


class Decoder(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.emb = tf.keras.layers.Embedding(V, 8)
        self.gru = tf.keras.layers.GRU(8, return_state=True)
        self.att = tf.keras.layers.Dense(8)
        self.out = tf.keras.layers.Dense(V)

    def call(self, x, state, enc):
        e = self.emb(x)
        w = tf.nn.softmax(tf.einsum("bd,btd->bt", self.att(state), enc))
        ctx = tf.einsum("bt,btd->bd", w, enc)
        o, s = self.gru(tf.concat([e, ctx[:, None]], -1), initial_state=state)
        return self.out(o), s


enc, dec = Encoder(), Decoder()
opt = tf.keras.optimizers.Adam(0.01)
ce = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)


def loss_fn(y, p):
    mask = tf.cast(y != 0, tf.float32)
    return tf.reduce_mean(ce(y, p) * mask)


@tf.function
def step(s, t):
    loss = 0.0
    with tf.GradientTape() as tape:
        eo, state = enc(s)
        x = t[:, :1]
        for i in range(1, 7):
            p, state = dec(x, state, eo)
            loss += loss_fn(t[:, i], p)
            x = t[:, i : i + 1]
    v = enc.trainable_variables + dec.trainable_variables
    opt.apply_gradients(zip(tape.gradient(loss, v), v))
    return loss / 6


ck = tf.train.Checkpoint(enc=enc, dec=dec, opt=opt)
man = tf.train.CheckpointManager(ck, "ckpts", max_to_keep=2)
log = []
for epoch in range(3):
    total = 0
    for b, (s, t) in enumerate(ds):
        total += step(s, t)
    log.append(float(total) / (b + 1))
    if (epoch + 1) % 2 == 0:
        man.save()
before = [v.numpy().copy() for v in enc.trainable_variables]
for s, t in ds.take(1):
    step(s, t)
ck.restore(man.latest_checkpoint)
done(
    dec,
    None,
    log=log,
    step=int(opt.iterations.numpy()),
    enc=[w.sum() for w in enc.get_weights()],
    before=[b.sum() for b in before],
)
