"""DeepCTR's quick start: DeepFM on sparse and dense features."""

from __future__ import annotations

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tf_keras
from deepctr.feature_column import DenseFeat, SparseFeat, get_feature_names
from deepctr.models import DeepFM
from report import done

tf_keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)
size = 200
data = {f"C{i}": drawn.integers(0, 20, size) for i in range(1, 5)}
data |= {f"I{i}": drawn.uniform(size=size).astype(np.float32) for i in range(1, 3)}
target = drawn.integers(0, 2, size)
columns = [SparseFeat(f"C{i}", vocabulary_size=20, embedding_dim=4) for i in range(1, 5)]
columns += [DenseFeat(f"I{i}", 1) for i in range(1, 3)]
names = get_feature_names(columns)
inputs = {name: data[name] for name in names}
model = DeepFM(columns, columns, task="binary")
model.compile("adam", "binary_crossentropy", metrics=["binary_crossentropy"])
history = model.fit(inputs, target, batch_size=50, epochs=3, verbose=0, validation_split=0.2)
done(
    history=history.history,
    weights=model.get_weights(),
    predicted=model.predict(inputs, batch_size=64, verbose=0),
)
