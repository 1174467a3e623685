"""TF_MPI_EXTRAS: names are checked, and all ranks must have the same extras."""

from __future__ import annotations

from types import ModuleType

import pytest

from extras import load_config

BY_RANK = """
import os
os.environ["TF_MPI_EXTRAS"] = ("all", "none")[int(os.environ["OMPI_COMM_WORLD_RANK"])]
import tensorflow
"""


@pytest.fixture(scope="module")
def config() -> ModuleType:
    return load_config()


def test_names_of_extras_are_parsed(config: ModuleType) -> None:
    def on(text: str) -> object:
        return config.get("TF_MPI_EXTRAS", {"TF_MPI_EXTRAS": text})

    every = tuple(config.EXTRAS)
    assert config.get("TF_MPI_EXTRAS", {}) == on("all") == every
    assert on("none") == ()
    assert on(f"{every[1]},{every[0]}") == every[:2]
    assert on(f"-{every[0]}") == every[1:]


@pytest.mark.parametrize("text", ["", "speed", "all,none", "-speed", "kept_memory,-kept_memory"])
def test_an_unknown_name_is_an_error_that_lists_the_names(config: ModuleType, text: str) -> None:
    with pytest.raises(config.ConfigError) as error:
        config.check({"TF_MPI_EXTRAS": text})
    for name in config.EXTRAS:
        assert name in str(error.value)


def test_ranks_that_disagree_do_not_start(launch, tmp_path):
    script = tmp_path / "by_rank.py"
    script.write_text(BY_RANK)
    run = launch(script, np=2)
    assert run.returncode != 0
    said = "TF_MPI_EXTRAS: rank 0 has 'all', rank 1 has 'none'"
    assert any(said in text for text in run.stderr)
