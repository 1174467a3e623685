"""The exception that the builder raises for every problem that its user can fix."""

import errno


class BuildError(Exception):
    """What went wrong and what to do about it, in one line."""

    def __init__(self, what: str) -> None:
        super().__init__(" ".join(what.split()))


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_full(where: object) -> BuildError:
    return BuildError(f"no space left on the disk of {where}: free about 3 GB and run again")
