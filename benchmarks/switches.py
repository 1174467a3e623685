"""What it costs that a core goes from one process to the next, by how many take turns on it.

More processes than a processor has numbers for their address spaces (Linux on x86-64 uses 6 per
core) find none of their translations when they come back; each has its own caches to fill, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

_PAGES = 64  # that a process touches in a turn
_PAGE = 4096
_ROUNDS = 20  # between two looks at the clock


def switch_seconds(core: int, processes: int, seconds: float = 0.3) -> float:
    """From one process's turn on that core to the next one's, the turn itself included.

    `processes`, 2 or more, hand a byte around for about so many seconds, each to the next.
    """
    pipes = [os.pipe() for _ in range(processes)]
    running = []
    try:
        for i in range(processes):
            ends = (pipes[i][0], pipes[(i + 1) % processes][1])
            command = [sys.executable, __file__, str(core), *map(str, ends)]
            command.append(str(seconds if i == 0 else 0))
            running.append(
                subprocess.Popen(command, pass_fds=ends, stdout=subprocess.PIPE, text=True)
            )
        for ends in pipes:
            for end in ends:
                os.close(end)
        # Who has the time closes its pipe when that is over, and each the next one's.
        round_trip = float(running[0].communicate(timeout=60 + seconds)[0])
    finally:
        for process in running:
            process.kill()
            process.communicate()
    return round_trip / processes


def _hand_on(source: int, to: int, memory: bytearray) -> bool:
    byte = os.read(source, 1)
    if not byte:
        return False
    sum(memory[::_PAGE])
    try:
        os.write(to, byte)
    except BrokenPipeError:
        return False
    return True


def _take_turns(core: int, source: int, to: int, seconds: float) -> None:
    """Of the process that has `seconds`, not 0, prints the least time that a round took."""
    os.sched_setaffinity(0, {core})
    memory = bytearray(_PAGES * _PAGE)
    if seconds == 0:
        while _hand_on(source, to, memory):
            pass
        return
    os.write(to, b".")
    _hand_on(source, to, memory)  # all have started
    least, end = float("inf"), time.monotonic() + seconds
    while (begin := time.monotonic()) < end:
        for _ in range(_ROUNDS):
            _hand_on(source, to, memory)
        least = min(least, (time.monotonic() - begin) / _ROUNDS)
    print(least)


if __name__ == "__main__":
    _take_turns(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
