"""The extra kept_memory: what a step has freed, the next step finds."""

from __future__ import annotations

import resource

import pytest

pytestmark = pytest.mark.full

PAGES = 4 * 100 * 2**20 // resource.getpagesize()


@pytest.mark.parametrize("extras, kept", [("kept_memory", True), ("-kept_memory", False)])
def test_freed_memory(launch, scripts, extras, kept):
    # oneDNN, which TensorFlow turns on by itself on processors with AVX512_VNNI, brings its own
    # allocator, which keeps what is freed with and without.
    env = {"TF_MPI_EXTRAS": extras, "TF_ENABLE_ONEDNN_OPTS": "0"}
    ranks = launch(scripts / "memory.py", np=2, env=env).check().results
    for rank in ranks:
        assert (rank["faults"] < PAGES // 20) == kept, rank["faults"]
