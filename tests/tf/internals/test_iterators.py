"""A tf.data iterator ends at once on ranks that average, and seconds late otherwise.

If TensorFlow no longer calls glue's definition, the first test fails. If TensorFlow's iterators end
at once by themselves, the second fails, and the definition can be removed.
"""

from __future__ import annotations

import pytest

KINDS = ("eager", "session")


@pytest.mark.alone
def test_iterators_end_at_once_with_averaging_on(launch, scripts):
    for rank in launch(scripts / "iterators.py", np=2).check().results:
        assert all(rank[kind] < 1 for kind in KINDS), rank


@pytest.mark.full
@pytest.mark.alone
def test_iterators_end_late_with_averaging_off(launch, scripts):
    env = {"TF_MPI_ENABLE": "0"}
    (process,) = launch(scripts / "iterators.py", np=0, env=env).check().results
    assert all(process[kind] > 1 for kind in KINDS), process
