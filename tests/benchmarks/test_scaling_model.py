"""The cost model's arithmetic with given numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import columns, scaling, scaling_model
from benchmarks.scaling_model import Network, Node, Parameters, Sample
from benchmarks.switches import switch_seconds

PARAMETERS = Parameters(
    start=3e-5,
    touch=2e-11,
    far_touch=2.5e-11,
    wake=5e-5,
    turn=4e-5,
    crowded_touch=3e-11,
    crowded_far_touch=5e-11,
    round=3e-5,
)
NODE = Node(cores=2, cache=32 << 20)
NETWORK = Network(latency=2e-6, bandwidth=10e9, message=1e-6)


def test_cost_of_ranks_on_one_node() -> None:
    assert scaling_model.volume(1) == 0
    assert scaling_model.volume(2) == 2 + 1 + 1
    assert scaling_model.node_seconds(PARAMETERS, 1, NODE, 1e6) == 0
    # one core each: 30 us, and 1 MB x 20 ps x 4
    assert scaling_model.node_seconds(PARAMETERS, 2, NODE, 1e6) == pytest.approx(30e-6 + 80e-6)
    # Beyond the cache, a touch costs 25 ps: twice 16 MB, and the slots.
    expected = 30e-6 + 4 * (16 << 20) * 25e-12
    assert scaling_model.node_seconds(PARAMETERS, 2, NODE, 16 << 20) == pytest.approx(expected)
    # 8 ranks on 2 cores: 50 us, and 6 turns of 40; volume(8) = 2 x 2 x 7 / 8 + 1 + 2 / 8 = 4.75
    small = scaling_model.node_seconds(PARAMETERS, 8, NODE, 4)
    assert small == pytest.approx(50e-6 + 6 * 40e-6 + 4 * 4 * 4.75 * 30e-12)
    # 1 MiB is 8 chunks of 128 KiB; after the first, every 2 chunks are a round, with 4 slots.
    touched = 4 * 4.75 * (1 << 20) * 30e-12
    expected = 50e-6 + 6 * (40e-6 + 4.5 * 30e-6) + touched
    assert scaling_model.node_seconds(PARAMETERS, 8, NODE, 1 << 20) == pytest.approx(expected)
    # If switches take twice as long, turns take half as long again.
    slow = replace(NODE, switch=2)
    expected = 50e-6 + 1.5 * 6 * (40e-6 + 4.5 * 30e-6) + touched
    assert scaling_model.node_seconds(PARAMETERS, 8, slow, 1 << 20) == pytest.approx(expected)
    assert [scaling_model.rounds(size) for size in (8192, 8193, 1 << 18)] == [0, 1, 1.5]


def test_cost_between_nodes() -> None:
    assert scaling_model.between_seconds(NETWORK, 1, 8, 1e6) == 0
    # A small share: 2 x log2(8) rounds of 2 us, and 8 KB twice over an eighth of 10 GB/s.
    small = scaling_model.between_seconds(NETWORK, 8, 8, 8e3)
    assert small == pytest.approx(6 * 2e-6 + 2 * 8e3 / 1.25e9)
    # Two chunks of 2 MB each between 2 nodes.
    large = scaling_model.between_seconds(NETWORK, 2, 1, 4 << 20)
    assert large == pytest.approx(2 * 2 * 2e-6 + 2 * (4 << 20) / 2 / 10e9)
    one = scaling_model.job_seconds(PARAMETERS, NETWORK, 1, 8, 4 << 20, 1e6)
    # Rank 0 exchanges messages with 6 ranks more than in the measurement on 2 ranks.
    assert one == pytest.approx(
        scaling_model.node_seconds(PARAMETERS, 8, Node(8, 32 << 20), 1e6) + 6e-6
    )
    two = scaling_model.job_seconds(PARAMETERS, NETWORK, 2, 8, 4 << 20, 1e6)
    between = scaling_model.between_seconds(NETWORK, 2, 8, 1e6 / 8)
    # 7 ranks of its node and the other node; both ways, each with a poll.
    assert two - one == pytest.approx((7 - 6) * 1e-6 + 2 * 22e-6 + between)
    straight = scaling_model.job_seconds(PARAMETERS, NETWORK, 2, 8, 4 << 20, 1e6, tree=False)
    assert straight - two == pytest.approx(7 * 1e-6)


def test_control_messages_are_counted_as_for_real_engines() -> None:
    # tests/core/relay/tree_test.cc counts those of real engines.
    for nodes, ranks, straight, tree in [(2, 1, 2, 2), (2, 4, 14, 8), (8, 8, 126, 28)]:
        assert scaling_model.control_messages(nodes, ranks, tree=False) == straight
        assert scaling_model.control_messages(nodes, ranks, tree=True) == tree
    assert scaling_model.control_messages(64, 1, tree=True) == 16
    assert [scaling_model.levels(nodes) for nodes in (1, 2, 9, 10, 64, 73, 74)] == [
        *(0, 1, 1, 2, 2, 2),
        3,
    ]
    # 63 ranks of the node and 2 levels of 8 nodes, minus one; both ways with 2 hops.
    seconds = scaling_model.control_seconds(NETWORK, 64, 64, tree=True)
    assert seconds == pytest.approx((63 + 16 - 1) * 1e-6 + 4 * 22e-6)


def test_fit_recovers_the_parameters() -> None:
    samples = [
        Sample(n, NODE, size, scaling_model.node_seconds(PARAMETERS, n, NODE, size))
        for n in (2, 3, 4, 6)
        for size in (4, 65536, 1 << 20, 16 << 20)
    ]
    found = scaling_model.fit(samples)
    for name, value in vars(PARAMETERS).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-3), name
    with pytest.raises(ValueError, match="2 numbers of ranks"):
        scaling_model.fit([s for s in samples if s.ranks < 4])
    with pytest.raises(ValueError, match="some in the cache and some beyond"):
        scaling_model.fit([s for s in samples if s.bytes <= 1 << 20])


def test_a_shared_cache_counts_once(tmp_path: Path) -> None:
    for core, shared in enumerate(("0-1", "0-1", "2-3")):
        for index, size in enumerate(("32K", "512K", "32768K")):
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            (folder / "size").write_text(size + "\n")
            (folder / "shared_cpu_list").write_text(shared if index == 2 else str(core))
    assert scaling.cache_bytes([0, 1], tmp_path) == 32 << 20
    assert scaling.cache_bytes([0, 1, 2], tmp_path) == 64 << 20
    assert scaling.cache_bytes([9], tmp_path) == 0


def test_fitted_parameters_are_not_negative() -> None:
    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    found = scaling_model.non_negative(matrix, np.array([3.0, 2.0, 1.0]))
    assert found.tolist() == pytest.approx([2.0, 0.0])


def test_errors_are_relative_to_the_measured_time() -> None:
    measured = Sample(8, NODE, 1000, 2e-3)
    predicted = scaling_model.node_seconds(PARAMETERS, 8, NODE, 1000)
    (line,) = scaling.checked(PARAMETERS, [measured])
    assert line.predicted == predicted
    assert line.error == pytest.approx(predicted / 2e-3 - 1)


def test_the_median_of_the_turns_is_used() -> None:
    turns = [
        [Sample(8, replace(NODE, switch=switch), 1000, seconds)]
        for seconds, switch in ((3.0, 1.5), (1.0, 1.7), (2.0, 1.4))
    ]
    assert scaling.typical(turns) == [Sample(8, replace(NODE, switch=1.5), 1000, 2.0)]


def test_switch_time_is_in_a_plausible_range() -> None:
    """Longer than a system call, and shorter than any current core needs."""
    core = columns.cores()[0]
    assert 1e-7 < switch_seconds(core, 2, seconds=0.05) < 1e-3
    assert 1e-7 < switch_seconds(core, 5, seconds=0.05) < 1e-3
    assert scaling.slower_switch(core, 2) == 1
