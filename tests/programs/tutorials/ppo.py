import numpy as np
import tensorflow as tf
from report import done

tf.keras.utils.set_random_seed(14)
actor = tf.keras.Sequential(
    [tf.keras.Input((4,)), tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(2)]
)
critic = tf.keras.Sequential(
    [tf.keras.Input((4,)), tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(1)]
)
ao, co = tf.keras.optimizers.Adam(0.01), tf.keras.optimizers.Adam(0.02)


@tf.function
def learn(s, a, old, adv, ret):
    with tf.GradientTape() as t:
        lp = tf.gather(tf.nn.log_softmax(actor(s)), a, batch_dims=1)
        r = tf.exp(lp - old)
        l = -tf.reduce_mean(tf.minimum(r * adv, tf.clip_by_value(r, 0.8, 1.2) * adv))
    ao.apply_gradients(zip(t.gradient(l, actor.trainable_variables), actor.trainable_variables))
    with tf.GradientTape() as t:
        lv = tf.reduce_mean((ret - critic(s)[:, 0]) ** 2)
    co.apply_gradients(zip(t.gradient(lv, critic.trainable_variables), critic.trainable_variables))
    return tf.reduce_mean(old - lp)


kl = []
for it in range(3):
    s = np.random.normal(size=(64, 4)).astype("float32")
    logits = actor(s)
    a = tf.random.categorical(logits, 1)[:, 0]
    old = tf.gather(tf.nn.log_softmax(logits), a, batch_dims=1)
    ret = tf.constant(
        s[np.arange(64), a.numpy()] + 0.1 * np.random.normal(size=64).astype("float32"), tf.float32
    )
    adv = ret - critic(s)[:, 0]
    adv = (adv - tf.reduce_mean(adv)) / (tf.math.reduce_std(adv) + 1e-8)
    for ep in range(4):
        idx = np.random.permutation(64)
        for b in range(0, 64, 16):
            j = idx[b : b + 16]
            k = learn(
                tf.gather(s, j),
                tf.gather(a, j),
                tf.gather(old, j),
                tf.gather(adv, j),
                tf.gather(ret, j),
            )
        if k > 0.02:
            break
    kl.append(float(k))
done(actor, None, kl=kl, critic=[w.sum() for w in critic.get_weights()])
