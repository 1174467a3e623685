"""Arrays passed to fit that differ by rank: drawn without a seed, or the script's own parts."""

from __future__ import annotations

import numpy as np
import pytest

from reference import reference
from tiers import full

SCRIPT = """
import json, os, sys
import keras, numpy as np, tensorflow as tf
drawn = np.random.default_rng(int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)))  # as without a seed
x = drawn.normal(size=(50, 4)).astype("f")
y = x @ drawn.normal(size=(4, 2)).astype("f")
keras.utils.set_random_seed(3)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
model.compile("adam", "mse")
data = [tf.data.Dataset.from_tensor_slices((x, y)).batch(8)] if "dataset" in sys.argv else [x, y]
batch = {} if "dataset" in sys.argv else {"batch_size": 8}
history = model.fit(*data, **batch, epochs=2, verbose=0)
predicted = model.predict(x[:9], verbose=0)
weights = np.concatenate([w.ravel() for w in model.get_weights()]).tolist()
print("RESULT " + json.dumps({"weights": weights, "loss": history.history["loss"],
                              "predicted": predicted.ravel().tolist()}))
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("arrays") / "arrays.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("kind", ["arrays", full("dataset")])
def test_rank_0s_arrays_are_used_as_in_one_process(launch, script, kind):
    (alone,) = reference(script, args=[kind])
    run = launch(script, np=2, args=[kind], pooled=True).check()
    for number, rank in enumerate(run.results):
        for name, value in alone.items():
            if number and name == "predicted":
                assert not np.allclose(rank[name], value), "of its own rows"
                continue
            np.testing.assert_allclose(rank[name], value, rtol=2e-5, atol=1e-6)
    if kind == "arrays":
        assert run.stderr[0].count("the ranks have different arrays") == 1
        assert "TF_MPI_SHARD=off" in run.stderr[0]
