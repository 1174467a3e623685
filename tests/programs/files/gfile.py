import json

import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
g = tf.io.gfile
x = rng.normal(size=(90, 6)).astype("float32")
y = (x[:, :1] > 0).astype("float32")
g.makedirs("out/models")
with g.GFile("out/config.json", "w") as f:
    f.write(json.dumps({"units": 8, "lr": 0.01}))
with g.GFile("out/config.json") as f:
    c = json.loads(f.read())
m = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(c["units"], "relu"), keras.layers.Dense(1, "sigmoid")]
)
m.compile(keras.optimizers.Adam(c["lr"]), "binary_crossentropy")
h = m.fit(x, y, batch_size=20, epochs=2, verbose=0)
m.save_weights("out/models/new.weights.h5")
g.copy("out/models/new.weights.h5", "out/models/best.weights.h5", overwrite=True)
m.load_weights("out/models/best.weights.h5")
tf.io.write_file("out/pred.bin", tf.io.serialize_tensor(m(x)))
back = tf.io.parse_tensor(tf.io.read_file("out/pred.bin"), tf.float32)
done(m, h, back=back.numpy(), files=sorted(g.listdir("out")), n=len(g.glob("out/models/*")))
