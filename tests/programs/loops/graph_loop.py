import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(128, 6)).astype("float32")
y = (x[:, :1] - x[:, 1:2]).astype("float32")
ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(128).batch(16)
enc = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh")])
head = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
rec = keras.Sequential([keras.Input((8,)), keras.layers.Dense(6)])
o1, o2 = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05, momentum=0.9)
mean = keras.metrics.Mean()
ck = tf.train.Checkpoint(enc=enc, head=head, rec=rec, o1=o1, o2=o2, step=tf.Variable(0))
man = tf.train.CheckpointManager(ck, "ck", max_to_keep=2)


@tf.function
def epoch(ds):
    for x, y in ds:
        with tf.GradientTape(persistent=True) as t:
            z = enc(x, training=True)
            l1 = tf.reduce_mean((head(z) - y) ** 2)
            l2 = tf.reduce_mean((rec(z) - x) ** 2)
        g1 = t.gradient(l1, head.trainable_variables + enc.trainable_variables)
        g2 = t.gradient(l2, rec.trainable_variables)
        g1, _ = tf.clip_by_global_norm(g1, 1.0)
        o1.apply_gradients(zip(g1, head.trainable_variables + enc.trainable_variables))
        o2.apply_gradients(zip(g2, rec.trainable_variables))
        mean.update_state(l1)


best = 1e9
losses = []
for _e in range(6):
    mean.reset_state()
    epoch(ds)
    ck.step.assign_add(1)
    v = float(tf.reduce_mean((head(enc(x)) - y) ** 2))
    losses.append(float(mean.result()))
    if v < best:
        best = v
        man.save()
    elif len(losses) > 4:
        break
ck.restore(man.latest_checkpoint)
weights = [v.numpy() for v in enc.variables + head.variables]
done(trained=weights, step=int(ck.step), saved=len(man.checkpoints))
