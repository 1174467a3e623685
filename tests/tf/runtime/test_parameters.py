"""Names of earlier versions are read as what has taken their place; what is no name is refused."""

from __future__ import annotations

import pytest

from extras import load_config


@pytest.fixture(name="config", scope="module")
def config_fixture():
    return load_config()


def test_old_names_are_read(config, tmp_path):
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
            f"{old} is {new} now, and will not be read by the next version"
        ]
    assert config.renamed({"TF_MPI_COMPAT": "1"}) == []


def test_a_transfer_takes_no_longer_than_a_wait(config):
    stall, old = "TF_MPI_STALL_TIMEOUT", "TF_MPI_COLLECTIVE_TIMEOUT"
    found = [config.transfer_timeout({stall: seconds}) for seconds in ("0", "0.5", "20", "1800")]
    assert [*found, config.transfer_timeout({})] == [300, 1, 20, 300, 300]
    assert config.transfer_timeout({stall: "20", old: "400"}) == 400
    assert config.get(stall, {old: "400"}) == 1800
    with pytest.raises(config.ConfigError, match=f"{old}='soon' is not accepted"):
        config.check({old: "soon"})


def test_what_is_no_name_is_refused(config):
    assert not config.OLD_NAMES.keys() & config.PARAMETERS.keys()
    assert set(config.OLD_NAMES.values()) <= config.PARAMETERS.keys()
    with pytest.raises(config.ConfigError, match="TF_MPI_TRANSPORTS is no parameter"):
        config.check({"TF_MPI_TRANSPORTS": "1"})
