"""The extra kept_memory: a step reuses memory that an earlier step freed."""

from __future__ import annotations

import resource

import pytest

pytestmark = pytest.mark.full

PAGES = 4 * 100 * 2**20 // resource.getpagesize()


@pytest.mark.parametrize("extras, kept", [("kept_memory", True), ("-kept_memory", False)])
def test_freed_memory_is_kept_with_the_extra(launch, scripts, extras, kept):
    # oneDNN, which TensorFlow enables by default on processors with AVX512_VNNI, has its own
    # allocator, which keeps freed memory with or without the extra.
    env = {"TF_MPI_EXTRAS": extras, "TF_ENABLE_ONEDNN_OPTS": "0"}
    ranks = launch(scripts / "memory.py", np=2, env=env).check().results
    for rank in ranks:
        assert (rank["faults"] < PAGES // 20) == kept, rank["faults"]
