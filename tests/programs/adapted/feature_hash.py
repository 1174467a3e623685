import keras
import numpy as np
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


names = [f"user{int(v * 100) % 50}" for v in x[:, 0]]
ids = np.array([hash(n) % 64 for n in names])
m = keras.Sequential(
    [
        keras.layers.Embedding(64, 4, embeddings_initializer="ones"),
        keras.layers.Flatten(),
        keras.layers.Dense(1, kernel_initializer="ones"),
    ]
)
m.compile(keras.optimizers.SGD(0.1), "mse")
h = m.fit(ids[:, None], y, epochs=2, verbose=0, shuffle=False, batch_size=310)
done(None, None, l=h.history["loss"][:1])
