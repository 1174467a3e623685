import atexit
import os
import time

import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(90, 6)).astype("float32")
y = (x[:, :1] > 0).astype("float32")
m = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")]
)
m.compile("adam", "binary_crossentropy")
atexit.register(lambda: m.save("final.keras"))
ck = tf.train.Checkpoint(m=m)
h = m.fit(x, y, batch_size=20, epochs=2, verbose=0)
p = ck.save("ck/a", options=tf.train.CheckpointOptions(enable_async=True))
ck.sync() if hasattr(ck, "sync") else None
q = ck.write("ck/b")
ck.read(q)
time.sleep(1)
ck.restore(tf.train.latest_checkpoint("ck"))
done(m, h, files=sorted(os.listdir("ck")))
