"""horovod.common.exceptions."""


class HorovodInternalError(RuntimeError):
    """Nothing here raises it: a rank that fails ends the job."""


class HostsUpdatedInterrupt(RuntimeError):
    """Nothing here raises it: ranks neither come nor go."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync
