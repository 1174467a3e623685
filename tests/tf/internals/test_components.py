"""Open MPI's btl/ofi, which makes MPI_Init a second longer, is left out unless it was asked for."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.full


@pytest.mark.parametrize("chosen, used", [(None, "^ofi"), ("self,sm,tcp", "self,sm,tcp")])
def test_components(launch, scripts, chosen, used):
    run = launch(scripts / "components.py", np=2, env={"OMPI_MCA_btl": chosen}).check()
    assert [rank["btl"] for rank in run.results] == [used, used]
