"""The cost of switching a core between processes, by the number of processes that share it.

A processor has a limited number of address-space IDs (Linux on x86-64 uses 6 per core). With more
processes, none finds its address translations when it resumes; each also refills its own caches.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

_PAGES = 64  # touched by a process in each turn
_PAGE = 4096
_ROUNDS = 20  # between two reads of the clock


def switch_seconds(core: int, processes: int, seconds: float = 0.3) -> float:
    """The time between the turns of two processes on that core, including a turn.

    `processes`, 2 or more, pass a byte around in a ring for about `seconds`.
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
        # The process with the time limit closes its pipe at the end, and then each closes the next
        # one's.
        round_trip = float(running[0].communicate(timeout=60 + seconds)[0])
    finally:
        for process in running:
            process.kill()
            process.communicate()
    return round_trip / processes


def _pass_on(source: int, to: int, memory: bytearray) -> bool:
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
    """The process with `seconds` > 0 prints the shortest time that a round took."""
    os.sched_setaffinity(0, {core})
    memory = bytearray(_PAGES * _PAGE)
    if seconds == 0:
        while _pass_on(source, to, memory):
            pass
        return
    os.write(to, b".")
    _pass_on(source, to, memory)  # waits until all have started
    least, end = float("inf"), time.monotonic() + seconds
    while (begin := time.monotonic()) < end:
        for _ in range(_ROUNDS):
            _pass_on(source, to, memory)
        least = min(least, (time.monotonic() - begin) / _ROUNDS)
    print(least)


if __name__ == "__main__":
    _take_turns(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
