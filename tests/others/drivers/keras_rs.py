"""KerasRS's Deep & Cross network, Keras 3 `fit`."""

from __future__ import annotations

import keras
import keras_rs
import numpy as np
from report import done

keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)
features = {
    "country": drawn.integers(0, 20, (256, 1)),
    "bananas": drawn.integers(0, 24, (256, 1)),
    "cookbooks": drawn.integers(0, 12, (256, 1)),
}
target = (features["country"] / 10 - features["bananas"] * features["cookbooks"] / 100).astype("f4")
inputs = {name: keras.Input((1,), name=name, dtype="int32") for name in features}
embedded = [
    keras.layers.Flatten()(keras.layers.Embedding(24, 8)(tensor)) for tensor in inputs.values()
]
x = start = keras.layers.Concatenate()(embedded)
for _ in range(2):
    x = keras_rs.layers.FeatureCross(projection_dim=6)(start, x)
x = keras.layers.Dense(32, activation="relu")(x)
model = keras.Model(inputs, keras.layers.Dense(1)(x))
model.compile(keras.optimizers.AdamW(0.01), "mse", metrics=["mae"])
history = model.fit(features, target, batch_size=32, epochs=3, verbose=0)
done(
    history=history.history,
    weights=model.get_weights(),
    predicted=model.predict(features, verbose=0),
)
