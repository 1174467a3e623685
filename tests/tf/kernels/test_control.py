"""The control: with averaging off, the comparisons of test_optimizer_ops.py must fail."""

from __future__ import annotations

import pytest
from compare import assert_close, assert_same

from reference import reference

pytestmark = pytest.mark.full


def test_ranks_without_averaging_differ(launch, scripts):
    script, args = scripts / "optimizer_ops.py", ["function"]
    off = {"TF_MPI_ENABLE": "0", "TEST_UNSYNCHRONISED": "1"}
    ranks = launch(script, np=2, args=args, env=off, timeout=180).check().results
    alone = reference(script, args=args)[0]
    for case in alone:
        with pytest.raises(AssertionError, match="differs from rank 0"):
            assert_same(ranks, case)
        for rank in ranks:  # neither rank 0, which starts like the plain process, nor rank 1
            assert rank[case]["var"] != alone[case]["var"]
            with pytest.raises(AssertionError, match="differences above"):
                assert_close(rank[case], alone[case], 1e-5)
