"""Elements that are not tensors: batches whose samples are known, and batches whose are not."""

from __future__ import annotations

import pytest
from compare import assert_cases_close, assert_same

from reference import reference
from tiers import full


@pytest.mark.parametrize("args", [[], full(["off"])], ids=str)
def test_elements_of_other_types_equal_one_process(launch, scripts, args):
    (alone,) = reference(scripts / "other_types.py", args=args)
    env = {"TF_MPI_SHARD": "off"} if args else {}
    run = launch(
        scripts / "other_types.py", np=2, args=args, env=env, timeout=240, pooled=not args
    ).check()
    assert_same(run.results)
    assert_cases_close(run.results[1], alone, 1e-5)
    if not args:
        said = run.stderr[0]
        assert said.count("a batch with a Plain, whose samples") == 1
        assert "different data" not in said
