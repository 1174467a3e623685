"""Open MPI's btl/ofi, which slows MPI_Init by a second, is excluded unless it was requested."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.full


@pytest.mark.parametrize("chosen, used", [(None, "^ofi"), ("self,sm,tcp", "self,sm,tcp")])
def test_btl_ofi_is_excluded_unless_requested(launch, scripts, chosen, used):
    run = launch(scripts / "components.py", np=2, env={"OMPI_MCA_btl": chosen}).check()
    assert [rank["btl"] for rank in run.results] == [used, used]
