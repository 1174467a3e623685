"""The lines and errors of tf.distribute's strategies, tested in this process with a fake
resolver."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from extras import load

PACKAGE = "tensorflow.python.distribute"


class Resolver:
    def __init__(self, workers: int, task: str = "worker") -> None:
        self.task_type, self._workers = task, workers

    def cluster_spec(self) -> Any:
        return types.SimpleNamespace(as_dict=lambda: {"worker": ["host"] * self._workers})


@pytest.fixture(name="strategies")
def strategies_fixture(monkeypatch: pytest.MonkeyPatch) -> Any:
    strategies = load("tensorflow.mpi._src.distribute.strategies")
    base = types.SimpleNamespace(ClusterResolver=Resolver)
    resolvers = types.SimpleNamespace(cluster_resolver=base, tfconfig_cluster_resolver=None)
    monkeypatch.setitem(sys.modules, f"{PACKAGE}.cluster_resolver", resolvers)
    mirrored = types.SimpleNamespace(mirrored_strategy=None)
    monkeypatch.setitem(sys.modules, PACKAGE, mirrored)
    monkeypatch.setattr(strategies.group, "size", 2)
    return strategies


@pytest.fixture(name="said")
def said_fixture(strategies: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines passed to log.once."""
    said: list[str] = []
    monkeypatch.setattr(strategies.log, "once", said.append)
    return said


def test_more_devices_than_a_rank_uses_are_reported(strategies, said):
    assert strategies.replicas_of_devices(["cpu:0", "cpu:1"])[0] == 2
    assert said == [
        "the strategy has 2 devices, but each rank computes its part of a batch on one; to use "
        "more, start one rank per core or GPU"
    ]


def test_other_workers_than_the_ranks_are_reported(strategies, said):
    assert strategies.replicas_of_workers(cluster_resolver=Resolver(2))[0] == 2
    assert not said
    strategies.replicas_of_workers(cluster_resolver=Resolver(3))
    (line,) = said
    assert line.startswith(
        "TF_CONFIG names 3 workers, but 2 ranks run: they split the global batch"
    )


def test_a_rank_that_is_not_a_worker_is_refused(strategies):
    words = (
        "rank 0 of 2 is a 'ps' according to its TF_CONFIG.*Unset TF_CONFIG and start workers only"
    )
    with pytest.raises(NotImplementedError, match=words):
        strategies.replicas_of_workers(cluster_resolver=Resolver(2, "ps"))
