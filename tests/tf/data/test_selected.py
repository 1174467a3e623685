"""Pipelines in which each rank decodes only its own samples: same results, less work."""

from __future__ import annotations

import pytest

from tiers import full

SAMPLES, BATCHES = 23, 5  # in one pass
# Reads two files per sample, none, as many as are read ahead, or those of skipped batches.
UNCOUNTED = ("zip", "zip of batches", "rows alone", "endless", "batches repeated")
CHANGE = ("cache of a shuffle", "cached lengths")  # a rank's samples change between epochs


@pytest.fixture(
    scope="module",
    params=["2 quick", *map(full, ("2 all", "3 all", "4 all", "5 quick", "8 all"))],
)
def selected(launch, scripts, request):
    """The results of selected.py, by number of ranks and name."""
    script, args = scripts / "selected.py", request.param.split()
    return launch(script, np=0, args=args, timeout=600, pooled=True).check().results[0]


def test_samples_equal_those_of_one_process(selected):
    """Batch by batch, in order, over three epochs, and from a restored iterator."""
    for size, pipelines in selected.items():
        for name, found in pipelines.items():
            assert found["equal"], (size, name)
            assert found["cardinality"], (size, name)
            assert found["resumes"] is not False, (size, name)


def test_a_rank_reads_only_the_samples_that_it_trains_on(selected):
    """One file per sample, and one for each batch in which it has only a stand-in."""
    for size, pipelines in selected.items():
        for name, found in pipelines.items():
            if found["expected wall"] or name in UNCOUNTED:
                continue
            share = found["samples"] / int(size) + found["batches"][-1]
            assert max(found["read"]) <= share + 0.5, (size, name)


def test_large_elements_are_not_copied(selected):
    """Five copies of the series of "windows" take 160 MB."""
    for pipelines in selected.values():
        assert pipelines["windows"]["grown"] < 100


def test_a_rank_decodes_cached_samples_once(selected):
    """Over four epochs, the last in another call of fit: its own rows, or the missing ones."""
    for size, pipelines in selected.items():
        for name, found in pipelines.items():
            if name.startswith("cache"):
                own = SAMPLES / int(size) + BATCHES
                most = SAMPLES if name in CHANGE or found["expected wall"] else own
                assert max(found["read in all"]) <= most + 0.5, (size, name)


def test_a_ranks_cache_is_freed_with_the_dataset(selected):
    for pipelines in selected.values():
        assert pipelines["cache of a shuffle"]["left over"] == [True, 0]


def test_a_wall_is_named_and_no_work_moves_past_it(selected):
    for size, pipelines in selected.items():
        for name, found in pipelines.items():
            wall = found["expected wall"]
            assert found["wall"].startswith(f"input pipeline: {wall}" if wall else ""), name
            assert bool(found["wall"]) == bool(wall), (size, name, found["wall"])
            assert "None" not in found["said"], (name, found["said"])
            if wall:
                assert len({round(read) for read in found["read"]}) == 1, (size, name)


def test_the_plan_shows_operations_on_own_rows(selected):
    for pipelines in selected.values():
        assert pipelines["filter"]["plan"] == (
            "plan: input pipeline: tensor_slice > map 'decode' > filter > batch"
        )
        assert pipelines["cached behind a filter"]["plan"] == (
            "plan: input pipeline: tensor_slice > shuffle > map 'decode' > filter > batch > "
            "cache (own rows) > repeat (own rows)"
        )
        assert pipelines["zip of zip"]["plan"] == (
            "plan: input pipeline: ((tensor_slice, tensor_slice > map 'read' (own rows)) > zip, "
            "range) > zip > map '<lambda>' (own rows) > batch (own rows)"
        )
        assert pipelines["cache of a shuffle"]["plan"] == (
            "plan: input pipeline: tensor_slice > shuffle > map 'decode' (own rows) > "
            "map 'numbers' (own rows) > cache (own rows) > shuffle > batch (own rows)"
        )
