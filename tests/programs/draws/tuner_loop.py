import hashlib
import itertools
import json
import os
import random
import shutil
import tempfile
import uuid

import keras
import numpy as np
from report import done

x = np.random.normal(size=(160, 6)).astype("float32")
y = (x[:, :1] > x[:, 1:2]).astype("float32")
rng = np.random.RandomState(5)
x = rng.normal(size=(160, 6)).astype("float32")
y = (x[:, :1] > x[:, 1:2]).astype("float32")
space = {"units": [4, 8], "act": ["relu", "tanh"], "opt": ["sgd", "adam"]}
trials = list(itertools.product(*space.values()))
random.shuffle(trials)
trials = trials[:4]
results = {}
with tempfile.TemporaryDirectory() as tmp:
    for t in trials:
        keras.backend.clear_session()
        hp = dict(zip(space, t))
        key = hashlib.md5(json.dumps(hp, sort_keys=True).encode()).hexdigest()[:8]
        m = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(hp["units"], hp["act"]),
                keras.layers.Dense(1, "sigmoid"),
            ]
        )
        m.compile(hp["opt"], "binary_crossentropy", metrics=["accuracy"])
        path = os.path.join(tmp, f"{key}-{uuid.uuid4().hex}.keras")
        m.fit(
            x,
            y,
            validation_split=0.25,
            epochs=3,
            verbose=0,
            callbacks=[
                keras.callbacks.ModelCheckpoint(path, monitor="val_accuracy", save_best_only=True),
                keras.callbacks.EarlyStopping(patience=2),
            ],
        )
        b = keras.models.load_model(path)
        results[key] = (b.evaluate(x, y, verbose=0)[0], path)
    best = min(results, key=lambda k: results[k][0])
    model = keras.models.load_model(results[best][1])
    shutil.copy(results[best][1], "best.keras")
    again = keras.models.load_model("best.keras")
    p, q = model.predict(x, verbose=0), again.predict(x, verbose=0)
with open("results.json", "w") as f:
    json.dump({k: v[0] for k, v in results.items()}, f)
done(None, None, same=float(abs(p - q).max()), n=len(results), files=sorted(os.listdir(".")))
