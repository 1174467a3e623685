"""horovod.common.exceptions."""


class HorovodInternalError(RuntimeError):
    """Never raised here: a rank that fails ends the job."""


class HostsUpdatedInterrupt(RuntimeError):
    """Never raised here: the set of ranks does not change."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync
