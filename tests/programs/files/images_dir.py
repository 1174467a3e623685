import os

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


from PIL import Image

for i in range(40):
    d = f"img/{'ab'[i % 2]}"
    os.makedirs(d, exist_ok=True)
    Image.fromarray((rng.random((8, 8, 3)) * 120 + 100 * (i % 2)).astype("uint8")).save(
        f"{d}/{i}.png"
    )
tr = keras.utils.image_dataset_from_directory(
    "img",
    image_size=(8, 8),
    batch_size=8,
    validation_split=0.25,
    subset="training",
    seed=3,
    verbose=False,
)
va = keras.utils.image_dataset_from_directory(
    "img",
    image_size=(8, 8),
    batch_size=8,
    validation_split=0.25,
    subset="validation",
    seed=3,
    verbose=False,
)
m = keras.Sequential(
    [
        keras.Input((8, 8, 3)),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(4, 3, activation="tanh"),
        keras.layers.Flatten(),
        keras.layers.Dense(1, "sigmoid"),
    ]
)
m.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
h = m.fit(tr, validation_data=va, epochs=2, verbose=0)
done(m, h)
