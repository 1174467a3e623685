"""The Keras of old scripts on ranks: averaged always, and fed all data if a Session runs it."""

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
def test_the_keras_of_old_scripts_equals_one_process(launch, scripts, args, size):
    (alone,) = reference(scripts / "sessions.py", args=args)
    run = launch(scripts / "sessions.py", np=size, args=args).check()
    results = run.results
    files, of_one = [rank.pop("saved", None) for rank in results], alone.pop("saved", None)
    assert_same(results)
    for case, values in alone.items():
        assert_close(results[0][case], values, 1e-5)
    if of_one is not None:
        assert [rank["names"] for rank in files] == [of_one["names"]] * size
        # The other ranks' own names are links to rank 0's files.
        assert all(links > 1 for rank in files[1:] for links in rank["links"])
    said = sum("every rank trains on all of each batch" in text for text in run.stderr)
    assert said == ("loop" not in args)
