"""Typical programs give the same results on ranks as in one process: run.py's table as a test.

Each program explains itself; each room holds programs of one kind.
"""

from __future__ import annotations

import pytest

from programs.run import CLOSE, ROOMS, UNLIKE, differences, programs, run


def test_a_difference_is_detected() -> None:
    one = {"weights": [[1.0, 2.0]], "history": {"loss": [1.0]}, "values": {"n": "a"}, "files": []}
    assert max(differences(one, one).values()) == 0
    assert max(differences({**one, "history": {"loss": [1.001]}}, one).values()) > CLOSE
    assert max(differences({**one, "weights": [[1.0]]}, one).values()) > CLOSE
    assert max(differences({**one, "values": {"n": "b"}}, one).values()) > CLOSE
    assert max(differences({**one, "files": ["x"]}, one).values()) > CLOSE
    assert max(differences({"error": "..."}, one).values()) > CLOSE


# A separate launch for each program that trains five variants for 50 steps.
LONG = "noise"


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("room", [*(room for room in ROOMS if room != LONG), *programs([LONG])])
def test_programs_of_a_room_equal_one_process(room: str, ranks: int) -> None:
    found = list(run(programs([room]), ranks))
    assert len(found) >= (1 if room.startswith(LONG) else 5)
    apart = {name: far for name, far, _ in found if max(far.values()) > CLOSE}
    assert set(apart) == set(UNLIKE) & {name for name, _, _ in found}, apart
