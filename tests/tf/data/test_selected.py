"""Pipelines whose samples are chosen before they are decoded: the same samples, less work."""

from __future__ import annotations

import pytest

from tiers import full

SAMPLES, BATCHES = 23, 5  # of one pass
# Two files for a sample, none, as many as are read ahead, and those of batches that are skipped.
UNCOUNTED = ("zip", "zip of batches", "rows alone", "endless", "batches repeated")
CHANGE = ("cache of a shuffle", "cached lengths")  # which samples a rank has, by epochs


@pytest.fixture(
    scope="module",
    params=["2 quick", *map(full, ("2 all", "3 all", "4 all", "5 quick", "8 all"))],
)
def selected(launch, scripts, request):
    """By number of ranks and name, what selected.py has found."""
    script, args = scripts / "selected.py", request.param.split()
    return launch(script, np=0, args=args, timeout=600, pooled=True).check().results[0]


def test_samples_are_those_of_one_process(selected):
    """Batch by batch, in order, in three epochs; from a restored iterator, too."""
    for size, pipelines in selected.items():
        for name, found in pipelines.items():
            assert found["equal"], (size, name)
            assert found["cardinality"], (size, name)
            assert found["resumes"] is not False, (size, name)


def test_a_rank_reads_what_it_trains_on(selected):
    """A file for each sample, and one for each batch in which it has none but a stand-in."""
    for size, pipelines in selected.items():
        for name, found in pipelines.items():
            if found["expected wall"] or name in UNCOUNTED:
                continue
            share = found["samples"] / int(size) + found["batches"][-1]
            assert max(found["read"]) <= share + 0.5, (size, name)


def test_a_rank_decodes_what_it_caches_once(selected):
    """In four epochs, the last of another call of fit: its own rows, or what it lacks."""
    for size, pipelines in selected.items():
        for name, found in pipelines.items():
            if name.startswith("cache"):
                own = SAMPLES / int(size) + BATCHES
                most = SAMPLES if name in CHANGE or found["expected wall"] else own
                assert max(found["read in all"]) <= most + 0.5, (size, name)


def test_what_a_rank_has_cached_goes_with_the_dataset(selected):
    for pipelines in selected.values():
        assert pipelines["cache of a shuffle"]["left over"] == [True, 0]


def test_a_wall_is_named_and_no_work_moves_past_it(selected):
    for size, pipelines in selected.items():
        for name, found in pipelines.items():
            wall = found["expected wall"]
            assert found["wall"].startswith(f"input pipeline: {wall}" if wall else ""), name
            assert bool(found["wall"]) == bool(wall), (size, name, found["wall"])
            if wall:
                assert len({round(read) for read in found["read"]}) == 1, (size, name)


def test_the_plan_shows_what_is_done_for_own_rows(selected):
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
