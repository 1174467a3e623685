"""Every entry point of a Keras optimizer averages its gradients once, before any other use."""

from __future__ import annotations

import numpy as np
import pytest
from compare import decode

from reference import reference
from tiers import full

# Gradients averaged by each case: one per variable and step, however it is called.
AVERAGED = {"large": 6, "two of a kind": 4, "sparse": 2, "overrides apply": 2}


@pytest.mark.parametrize(("flavour", "size"), [("keras", 2), full("keras", 3), full("tf_keras", 3)])
def test_every_entry_point_averages_once(launch, scripts, flavour, size):
    script, args = scripts / "keras_optimizers.py", [flavour, str(size)]
    (alone,) = reference(script, args=args)
    ranks = launch(script, np=size, args=args, timeout=200, pooled=True).check().results
    far = {}
    for case, theirs in alone.items():
        for ours in ranks:
            assert ours[case] == ranks[0][case], f"{case}: ranks differ"
        ours = ranks[0][case]
        assert theirs["averaged"] == 0
        assert ours["averaged"] == AVERAGED.get(case, 4), case
        pairs = zip(ours["trained"], theirs["trained"], strict=True)
        apart = max(float(np.abs(decode(a) - decode(b)).max()) for a, b in pairs)
        if not apart <= 2e-6:
            far[case] = apart
    assert not far, f"differs from one process: {far}"


OLD_KERAS = """
import keras, numpy as np
from tensorflow.mpi._src.keras import optimizers
optimizers._OLDEST_KERAS = (99, 0)
optimizers._unsupported.cache_clear()
class SGD(keras.optimizers.SGD):  # hooked into anew
    def apply(self, *args):
        super().apply(*args)
SGD().apply([np.ones(2, "f")], [keras.Variable(np.ones(2, "f"))])
"""


@pytest.mark.full
def test_a_keras_that_is_too_old_is_an_error(launch, tmp_path):
    script = tmp_path / "old.py"
    script.write_text(OLD_KERAS)
    run = launch(script, np=2)
    assert run.returncode != 0
    for words in ("optimizer SGD", "is older than 3.10", "TF_MPI_ENABLE=0"):
        assert words in run.stderr[0], run.report()
