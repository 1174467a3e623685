"""Which GPU each rank of a machine uses; needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from tensorflow.mpi import config
from tensorflow.mpi._src.gpu import gpus
from tensorflow.mpi._src.lifecycle import settings

A, B, C, D = (f"0000:{bus}:00.0" for bus in ("0A", "1B", "2C", "3D"))


@pytest.mark.parametrize(
    ("seen", "used"),
    [
        pytest.param([[A, B]] * 2, [A, B], id="one each"),
        pytest.param([[D, B, A, C]] * 4, [A, B, C, D], id="in the order of addresses"),
        pytest.param([[A, B, C, D]] * 2, [A, B], id="more GPUs than ranks"),
        pytest.param([[A, B]] * 4, [A, A, B, B], id="more ranks than GPUs, neighbours share"),
        pytest.param([[A, B]] * 3, [A, A, B], id="as evenly as can be"),
        pytest.param([[A]] * 3, [A, A, A], id="one for all"),
        pytest.param([[A], [B], [C]], [A, B, C], id="the launcher has given each its own"),
        pytest.param([[A, B], [A, B], [C, D]], [A, B, C], id="the launcher has given pairs"),
        pytest.param([[], []], [None, None], id="none"),
        pytest.param([[], [A]], [None, A], id="one rank has none"),
    ],
)
def test_each_rank_gets_a_gpu(seen: list[list[str]], used: list[str | None]) -> None:
    chosen = gpus.choose(seen)
    found = [
        None if number is None else own[number] for own, number in zip(seen, chosen, strict=True)
    ]
    assert found == used


@pytest.mark.parametrize("version", ["2.21.0+mpi.1.cpu", "2.21.0+mpi.1.cuda"])
def test_ranks_with_different_wheels_are_detected(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Through the comparison that all ranks make at the start."""
    monkeypatch.setattr(settings._build_info, "VERSION", version)
    assert settings.text().startswith(f"wheel={version} ")


@pytest.mark.parametrize(
    ("value", "is_on"), [("1", True), (" 1 ", True), ("0", False), (None, False)]
)
@pytest.mark.parametrize(
    ("read", "name"),
    [
        (config.nccl_shares_gpus, "NCCL_MULTI_RANK_GPU_ENABLE"),
        (config.cray_takes_gpus, "MPICH_GPU_SUPPORT_ENABLED"),
    ],
)
def test_gpu_settings_are_read_from_other_libraries_variables(
    read: Callable[[Mapping[str, str]], bool], name: str, value: str | None, is_on: bool
) -> None:
    assert read({} if value is None else {name: value}) is is_on
