"""How a rank that writes no files waits for the save of rank 0 that matches its own.

A rank that saves a path for the k-th time waits until rank 0 has posted it k times, or has posted a
path that differs only in tempfile's random names and the process ID (names.py). If rank 0
continues without such a save, one of its unmatched saves of the same kind is taken as this save,
under another name: the one whose name is most similar, or of several the earliest. Rank 0 has
continued if it waits for this rank in an exchange, if it has saved something in the section in
which this rank waits and has left it (saves.passing), or if its script has ended. So a wait ends at
the latest when rank 0 needs this rank.
"""

from __future__ import annotations

import collections
import glob
import os
import re
import threading
import time
from typing import NamedTuple

from tensorflow.mpi import config, errors
from tensorflow.mpi._src.files import failures, names
from tensorflow.mpi._src.presence import presence
from tensorflow.mpi._src.runtime import c_api, group, log

# Keys of posts: of all saves, of sections that rank 0 has left, of its end.
_SAVES, _LEFT, _ENDED = "saves", "left ", "the script has ended"
UNSYNCHRONIZED = "clock"  # the kind of saves that no other rank waits for
_RANK_0_WAITS = "rank 0 waits"  # kRank0Waits of core/agreement/coordinator.h

_POLL_SECONDS = (0.001, 0.02)  # the first sleep of a wait, and the longest
# After so many posts of _RANK_0_WAITS, which come every 0.2 s:
_POSTS_UNTIL_CONTINUED = 2  # rank 0 counts as waiting for a request of this rank
_POSTS_UNTIL_ERROR = 25  # rank 0 counts as not saving any more

_SHARED_SECONDS = 5.0  # a network file system may take this long to show a new file
_not_shared: set[str] = set()  # folders that this node does not share with rank 0's

_lock = threading.Lock()
_own_saves: collections.Counter[str] = collections.Counter()  # of this rank, by path; under _lock


class _Save(NamedTuple):
    """One save of rank 0."""

    failure: str  # from failures.describe; empty: rank 0 has saved
    kind: str
    path: str
    pattern: str  # names.pattern of the path
    kept: str  # a link that stays if the script removes the file; empty: none
    seen: str  # a path that other nodes see if they share its folder; empty: unknown


_rank_0: list[_Save] = []  # rank 0's saves in order; written under _lock
# Indices in _rank_0.
_by_path: dict[str, list[int]] = collections.defaultdict(list)  # written under _lock
_matched: set[int] = set()  # of those matched with saves of this rank; under _lock


def post_save(failure: str, kind: str, path: str) -> None:
    """On rank 0: posts that a save has ended, with `failure` (failures.describe) or ""."""
    kept = "" if failure else names.keep_for_other_ranks(path)
    seen = kept or (path if not failure and _has_nodes() and _exists(path) else "")
    pattern = names.pattern(path, short=True)
    post("\n".join((_SAVES, failure, kind, path, pattern, kept, seen)))


def post_section_left(section: str) -> None:
    """On rank 0: posts that it has left this section."""
    post(_LEFT + section)


def post_end(why: str | None) -> None:
    """On rank 0: posts that nothing more will be saved. why: the reason of a failure, or None."""
    post(f"{_ENDED}\n{why or ''}")


def post(text: str) -> None:
    """Sends all ranks a key, or a key and, after a newline, a text."""
    c_api.load().tfmpi_post(text.encode())


def _posted(key: str) -> int:
    return int(c_api.load().tfmpi_posted(key.encode()))


def posted_texts(key: str) -> list[str]:
    """The texts posted under `key` that this rank has received, in order."""
    return [_value(key, number) for number in range(_posted(key))]


def _value(key: str, number: int) -> str:
    """The text after the key, of the post with this number."""
    buffer = c_api.error_buffer(2**15)
    c_api.load().tfmpi_posted_value(key.encode(), number, buffer, len(buffer))
    return c_api.error_text(buffer)


class _Wait:
    """This rank's wait for one save."""

    def __init__(self, kind: str, path: str, section: str | None) -> None:
        self.kind, self.path, self.section = kind, path, section
        self.rank_0_path, self.pattern = names.of_rank_0(path), names.pattern(path, short=True)
        # Posts when this wait began, and when the others last averaged without this rank.
        self.rank_0_waits_before = self.rank_0_waits_at_miss = _posted(_RANK_0_WAITS)
        self.missed = int(c_api.load().tfmpi_missed())  # averages without this rank
        self.rank_0_continued = False
        self.seen = ""  # see _Save; of rank 0's save, once found
        with _lock:
            _own_saves[self.path] += 1
            self.number = _own_saves[self.path]

    def is_over(self) -> bool:
        """Whether rank 0 has done this save, or has posted that it left the section without this
        save, which is reported. Raises if rank 0 will do neither."""
        # Read these before the saves, because rank 0 posts them after its saves.
        ended = _posted(_ENDED) > 0
        left = self.section is not None and _posted(_LEFT + self.section) > 0
        rank_0_waits = _posted(_RANK_0_WAITS)
        missed = int(c_api.load().tfmpi_missed())
        if missed != self.missed:  # rank 0 was not waiting for this rank
            self.missed, self.rank_0_waits_at_miss = missed, rank_0_waits
        with _lock:
            _read()
            found = self._find_by_path()
            posts = rank_0_waits - self.rank_0_waits_before
            self.rank_0_continued = ended or left or posts >= _POSTS_UNTIL_CONTINUED
            if found is None and self.rank_0_continued:
                found = self._find_by_order()
            if found is not None:
                _matched.add(found)
        if found is not None:
            self._match(found)
        elif left:
            log.once(
                f"rank {group.rank} saves '{self.path}', but rank 0 has not saved it; nothing was "
                f"written. {_WAY_OUT}",
                key="save that rank 0 has not made",
                every_rank=True,
            )
        elif ended and (why := _value(_ENDED, 0)):
            raise errors.error_from_code(
                errors.UNAVAILABLE, f"rank 0/{group.size} has stopped: {why}"
            )
        elif ended or rank_0_waits - self.rank_0_waits_at_miss >= _POSTS_UNTIL_ERROR:
            raise errors.error_from_code(
                errors.UNAVAILABLE,
                f"rank {group.rank} saves '{self.path}', but "
                f"{_SCRIPT_ENDED if ended else _RANK_0_CONTINUED} without saving it. {_WAY_OUT}",
            )
        return found is not None or left

    def _find_by_path(self) -> int | None:
        """The index of the save of rank 0 that matches this one by path; under _lock."""
        candidates = [*_by_path[self.path], *_by_path[self.rank_0_path]]
        if self.pattern != self.path:
            candidates += (
                number
                for number, save in enumerate(_rank_0)
                if save.pattern == self.pattern != save.path and save.kind == self.kind
            )
        return next((number for number in candidates if number not in _matched), None)

    def _find_by_order(self) -> int | None:
        """The index of rank 0's unmatched save of the same kind whose name is most similar, or of
        several the earliest; under _lock.

        Never one before a save that is already matched: rank 0 made such saves alone.
        """
        # Saves of a path that this rank also saves are matched by path only; rank 0 has made the
        # unmatched ones alone.
        same_kind = [number for number, save in enumerate(_rank_0) if save.kind == self.kind]
        last = max(_matched.intersection(same_kind), default=-1)
        candidates = [
            number for number in same_kind if number > last and not _own_saves[_rank_0[number].path]
        ]
        similarity = {number: _similarity(self.path, _rank_0[number].path) for number in candidates}
        return min(candidates, key=lambda number: (-similarity[number], number), default=None)

    def _match(self, number: int) -> None:
        """Matches this save with rank 0's, and makes its file available here."""
        save = _rank_0[number]
        self.seen = save.seen
        if save.path != self.path:
            names.map_folders(self.path, save.path)
        if save.failure:
            cause = errors.error_from_code(
                errors.UNAVAILABLE,
                f"rank 0 could not save '{save.path}', which rank {group.rank} also saves: "
                f"{failures.text(save.failure)}",
            )
            raise failures.decode(save.failure, cause)
        if save.path == self.path or _by_path.get(self.path):  # rank 0's file is there already
            return
        linked = names.link_to_rank_0(self.path, save.path, save.kept)
        log.once(
            f"rank 0 has saved '{save.path}' where rank {group.rank} saves '{self.path}', which "
            + (_SAME_FILE_NOTE if linked else f"will not exist. {_WAY_OUT}"),
            key=f"save under another name: {linked}",
            every_rank=True,
        )

    def report_wait(self, posts_received: int) -> None:
        """Tells rank 0 that this rank waits and, in a custom loop, has no gradients to contribute.

        Raises if the ranks cannot continue. posts_received: the number of posts received before
        this rank last looked for the save.
        """
        error = c_api.error_buffer()
        in_loop = self.section is None and presence.in_own_loop()
        path = self.rank_0_path.encode()
        code = c_api.load().tfmpi_wait_for_file(path, posts_received, in_loop, error)
        if code != errors.OK:
            raise errors.error_from_code(code, c_api.error_text(error))

    def describe(self, seconds: float) -> str:
        times = len(_by_path.get(self.rank_0_path, ()))
        return (
            f"rank {group.rank} has waited {seconds:.0f} s for rank 0 to save '{self.rank_0_path}' "
            f"(save number {self.number} of this path; saves by rank 0: {times} of this path, "
            f"{len(_rank_0) - times} of others). {_WAY_OUT}"
        )


def wait(kind: str, path: str, section: str | None) -> bool:
    """Waits until rank 0 has done this rank's save of `path`, or has left `section` without it,
    which is reported.

    Returns False if rank 0 died before that, and this rank is now rank 0.

    Args:
      kind: the kind of save, the same on all ranks.
      section: the section in which all ranks are (saves.passing), or None.

    Raises:
      tf.errors.DeadlineExceededError: rank 0 has not saved within TF_MPI_STALL_TIMEOUT.
      tf.errors.UnavailableError: rank 0 has continued or ended without saving, and has not posted
        that it left `section` (see saves.passing).
      Exception: rank 0's save has failed; the exception that rank 0 raised (failures.py).
    """
    one = _Wait(kind, path, section)
    try:
        saved = _wait(one)
    finally:
        c_api.load().tfmpi_file_is_there()
    if one.seen and _has_nodes():
        _warn_if_missing(one.seen, names.of_rank_0(path))
    return saved


def _has_nodes() -> bool:
    return c_api.topology()[4] > 1


def _exists(path: str) -> bool:
    """Whether a file or folder exists, or files with that prefix, as for a checkpoint."""
    return "://" not in path and bool(glob.glob(glob.escape(path) + "*"))


def _warn_if_missing(seen: str, path: str) -> None:
    """Warns, once per folder, if `seen`, from rank 0's save of `path`, does not exist here."""
    folder = os.path.dirname(path)
    if folder in _not_shared:
        return
    until = time.monotonic() + _SHARED_SECONDS
    while not _exists(seen):
        if time.monotonic() >= until:
            _not_shared.add(folder)
            log.say(
                f"rank 0 has saved '{path}', but {_SHARED_SECONDS:.0f} s later it does not exist "
                f"on node {config.node_name()} of rank {group.rank}: unless the script has moved "
                "it, the nodes do not share its folder, and files that this rank loads from it "
                "will be missing or old. Save to a folder that all nodes share, or set "
                "TF_MPI_IO=all, so that each rank writes its own files"
            )
            return
        time.sleep(_POLL_SECONDS[1])


def _wait(one: _Wait) -> bool:
    """See `wait`."""
    warning, timeout = config.get("TF_MPI_STALL_WARNING"), config.get("TF_MPI_STALL_TIMEOUT")
    start = time.monotonic()
    next_warning = warning
    nap = _POLL_SECONDS[0]
    posts_received = _posts_received()
    while not one.is_over():
        if presence.follow() and group.rank == 0:
            return False
        if one.rank_0_continued and presence.alone():
            one.report_wait(posts_received)
        waited = time.monotonic() - start
        if timeout and waited >= timeout:
            raise errors.error_from_code(
                errors.DEADLINE_EXCEEDED,
                f"{one.describe(waited)}. If rank 0 is only slow, raise TF_MPI_STALL_TIMEOUT",
            )
        if warning and waited >= next_warning:
            next_warning += warning
            log.say(one.describe(waited))
        time.sleep(nap)
        nap = min(2 * nap, _POLL_SECONDS[1])
        posts_received = _posts_received()
    return True


def _posts_received() -> int:
    return int(c_api.load().tfmpi_posts_heard())


def _read() -> None:
    """Reads rank 0's posts about saves since the last call; under _lock."""
    for number in range(len(_rank_0), _posted(_SAVES)):
        save = _Save(*_value(_SAVES, number).split("\n"))
        _rank_0.append(save)
        _by_path[save.path].append(number)


def _similarity(one: str, other: str) -> int:
    """3: the same name; 2: the same except for numbers; 1: the same extension; 0: none of these."""
    name, other_name = os.path.basename(one), os.path.basename(other)
    if name == other_name:
        return 3
    if re.sub(r"\d+", "0", name) == re.sub(r"\d+", "0", other_name):
        return 2
    return int(os.path.splitext(name)[1] == os.path.splitext(other_name)[1])


_SAME_FILE_NOTE = (
    "refers to the same file until the process exits (a temporary folder, time or process ID in a "
    "name differs by rank)"
)
_SCRIPT_ENDED = "rank 0's script has ended"
_RANK_0_CONTINUED = "rank 0 has continued"
_WAY_OUT = (
    "Save under the same path on all ranks (names with the time, random names and temporary "
    "folders differ by rank), or on rank 0 only; or set TF_MPI_IO=all, so that each rank writes "
    "its own files"
)
