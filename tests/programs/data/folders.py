import os

import keras
import numpy as np
from report import done

rng = np.random.default_rng(3)
for kind in ("train/cats", "train/dogs", "text/good", "text/bad"):
    os.makedirs(kind, exist_ok=True)
for i in range(24):
    image = f"train/{'cats' if i % 2 else 'dogs'}/{i}.png"
    keras.utils.save_img(f"{os.getpid()}.png", rng.random((6, 6, 3)) * 255, scale=False)
    os.replace(f"{os.getpid()}.png", image)
    with open(f"{os.getpid()}.txt", "w") as file:
        file.write(" ".join(rng.choice(["nice", "poor", "film", "plot"], 5)))
    os.replace(f"{os.getpid()}.txt", f"text/{'good' if i % 3 else 'bad'}/{i}.txt")
keras.utils.set_random_seed(6)
train, valid = keras.utils.image_dataset_from_directory(
    "train", image_size=(6, 6), batch_size=8, validation_split=0.25, subset="both", seed=7
)
m = keras.Sequential(
    [keras.layers.Rescaling(1 / 255.0), keras.layers.Flatten(), keras.layers.Dense(1, "sigmoid")]
)
m.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
h = m.fit(train.map(lambda x, y: (x, y)), validation_data=valid, epochs=2, verbose=0)
texts = keras.utils.text_dataset_from_directory("text", batch_size=8, seed=8)
words = keras.layers.TextVectorization(output_sequence_length=5)
words.adapt(texts.map(lambda x, y: x))
t = keras.Sequential(
    [words, keras.layers.Embedding(10, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
)
t.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
h2 = t.fit(texts, epochs=2, verbose=0)
series = keras.utils.timeseries_dataset_from_array(
    np.sin(np.arange(120.0))[:, None], np.cos(np.arange(120.0)), 8, batch_size=16, shuffle=True
)
s = keras.Sequential([keras.layers.GRU(4), keras.layers.Dense(1)])
s.compile("rmsprop", "mse")
h3 = s.fit(series, epochs=2, verbose=0)
done(m, h, text=h2.history, series=h3.history, words=words.get_vocabulary())
