"""The end of a tf.data iterator: at once where ranks average, seconds late where they do not.

Should TensorFlow no longer call glue's definition, iterators of ranks that average are late; should
it end them at once by itself, those of stock TensorFlow are not, and the definition can go.
"""

from __future__ import annotations

import pytest

KINDS = ("eager", "session")


@pytest.mark.alone
def test_iterators_end_at_once_with_averaging(launch, scripts):
    for rank in launch(scripts / "iterators.py", np=2).check().results:
        assert all(rank[kind] < 1 for kind in KINDS), rank


@pytest.mark.full
def test_iterators_end_late_without(launch, scripts):
    env = {"TF_MPI_ENABLE": "0"}
    (process,) = launch(scripts / "iterators.py", np=0, env=env).check().results
    assert all(process[kind] > 1 for kind in KINDS), process
