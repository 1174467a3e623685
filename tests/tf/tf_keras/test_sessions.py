"""Keras of old scripts on ranks: fed all data where a Session runs it, averaged in any case."""

from __future__ import annotations

import pytest
from compare import assert_close, assert_same

from reference import reference
from tiers import full


@pytest.mark.parametrize(
    "args, size",
    [
        (["tf_keras"], 2),
        full(["python.keras"], 3),
        full(["python.keras", "loop"], 2),
    ],
    ids=str,
)
def test_keras_of_old_scripts_is_one_process(launch, scripts, args, size):
    (alone,) = reference(scripts / "sessions.py", args=args)
    run = launch(scripts / "sessions.py", np=size, args=args).check()
    assert_same(run.results)
    for case, values in alone.items():
        assert_close(run.results[0][case], values, 1e-5)
    said = sum("every rank trains on all of each batch" in text for text in run.stderr)
    assert said == ("loop" not in args)
