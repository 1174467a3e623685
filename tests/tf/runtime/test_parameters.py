"""Old names of parameters are read as their replacements; unknown names are refused."""

from __future__ import annotations

import pytest

from extras import load_config


@pytest.fixture(name="config", scope="module")
def config_fixture():
    return load_config()


def test_old_names_are_read_with_a_line(config, tmp_path):
    library = tmp_path / "libmine.so"
    library.touch()
    for old, value in {
        "TF_MPI_DDL": "1",
        "TF_MPI_HOROVOD": "0",
        "TF_MPI_TRANSPORT": "staged",
        "TF_MPI_TRANSPORT_LIBRARY": str(library),
    }.items():
        new = config.OLD_NAMES[old]
        assert config.get(new, {old: value}) == config.get(new, {new: value}) == value
        assert config.get(new, {old: "no such", new: value}) == value
        with pytest.raises(config.ConfigError, match=f"{old}='no such' is not accepted"):
            config.check({old: "no such"})
        assert config.renamed({old: value}) == [
            f"{old} has been renamed to {new}; the next version will not read the old name"
        ]
    assert config.renamed({"TF_MPI_COMPAT": "1"}) == []


def test_the_transfer_limit_is_at_most_the_stall_timeout(config):
    stall, old = "TF_MPI_STALL_TIMEOUT", "TF_MPI_COLLECTIVE_TIMEOUT"
    found = [config.transfer_timeout({stall: seconds}) for seconds in ("0", "1", "20", "1800")]
    assert [*found, config.transfer_timeout({})] == [300, 1, 20, 300, 300]
    assert config.transfer_timeout({stall: "20", old: "400"}) == 400
    assert config.get(stall, {old: "400"}) == 1800
    with pytest.raises(config.ConfigError, match=f"{old}='soon' is not accepted"):
        config.check({old: "soon"})


def test_a_start_limit_below_a_second_is_refused(config):
    with pytest.raises(config.ConfigError, match="='0.5' is not accepted; accepted: 0, or seconds"):
        config.check({"TF_MPI_STALL_TIMEOUT": "0.5"})
    assert config.get("TF_MPI_STALL_TIMEOUT", {"TF_MPI_STALL_TIMEOUT": "0"}) == 0


def test_the_deadlock_delay_is_below_the_stall_timeout(config):
    stall, old = "TF_MPI_STALL_TIMEOUT", "TF_MPI_DEADLOCK_TIMEOUT"
    found = [config.deadlock_timeout({stall: seconds}) for seconds in ("0", "20", "1800", "3600")]
    assert [*found, config.deadlock_timeout({})] == [0, 3, 3, 6, 3]
    assert config.deadlock_timeout({stall: "20", old: "0"}) == 0
    assert config.deadlock_timeout({stall: "0", old: "40"}) == 40
    assert config.get(stall, {old: "40"}) == 1800
    with pytest.raises(config.ConfigError, match=f"{old}='soon' is not accepted"):
        config.check({old: "soon"})


def test_scaling_the_rate_requires_a_batch_per_rank(config):
    batch, old = "TF_MPI_BATCH", "TF_MPI_SCALE_LR"
    for value, scale in {"per-rank:linear": "linear", "per-rank:sqrt": "sqrt"}.items():
        assert config.rate_scale({batch: value}) == scale
        assert config.rate_scale({batch: "per-rank", old: scale}) == scale
        assert config.batch_is_per_rank({batch: value})
        given = config.shared_settings({batch: "per-rank", old: scale})
        assert given[batch] == config.shared_settings({batch: value, old: "none"})[batch] == value
        with pytest.raises(config.ConfigError, match=f"{old}='{scale}' is not accepted with .*=gl"):
            config.check({old: scale})
    assert config.rate_scale({batch: "per-rank"}) == config.rate_scale({}) == "none"
    assert config.shared_settings({batch: "per-rank"})[batch] == "per-rank"
    assert not config.batch_is_per_rank({})


def test_a_path_to_nccl_is_compared_as_nccl(config, tmp_path):
    transport, old, library = "TF_MPI_GPU_TRANSPORT", "TF_MPI_NCCL_LIBRARY", tmp_path / "libnccl.so"
    library.touch()
    new = {transport: str(library)}
    assert (config.gpu_transport(new), config.nccl_library(new)) == ("nccl", str(library))
    assert config.shared_settings(new)[transport] == "nccl"  # the path may differ by node
    before = {transport: "staged", old: str(library)}
    assert (config.gpu_transport(before), config.nccl_library(before)) == ("staged", str(library))
    assert (config.gpu_transport({}), config.nccl_library({})) == ("auto", "")
    for name in (transport, old):
        with pytest.raises(config.ConfigError, match=f"{name}='/no/such' is not accepted"):
            config.check({name: "/no/such"})


def test_unknown_names_are_refused(config):
    assert not config.OLD_NAMES.keys() & config.PARAMETERS.keys()
    assert set(config.OLD_NAMES.values()) <= config.PARAMETERS.keys()
    with pytest.raises(config.ConfigError, match="TF_MPI_TRANSPORTS is not a parameter"):
        config.check({"TF_MPI_TRANSPORTS": "1"})
