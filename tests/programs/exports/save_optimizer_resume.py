import os

import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(310, 8)).astype("float32")
y = (np.tanh(x @ rng.normal(size=(8, 1))) + 0.1).astype("float32")
yc = (y[:, 0] > 0).astype("int32")


def mlp(out=1, act=None):
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(12, "tanh"), keras.layers.Dense(out, act)]
    )


m = mlp()
m.compile("adam", "mse")
m.fit(x, y, epochs=1, verbose=0)
m.save("a.keras")
n = keras.models.load_model("a.keras")
h = n.fit(x, y, epochs=1, verbose=0)
ck = tf.train.Checkpoint(model=n)
mg = tf.train.CheckpointManager(ck, "ckpt", max_to_keep=2)
mg.save()
mg.save()
n.set_weights([w * 0 for w in n.get_weights()])
ck.restore(mg.latest_checkpoint)
done(n, h, l=[os.path.basename(c) for c in mg.checkpoints])
