"""How a loss depends on samples is told from its ops: losses as people write them."""

from __future__ import annotations

from launch import launch


def test_kinds_are_told(scripts) -> None:
    (result,) = launch(scripts / "kinds.py", np=0, timeout=300, pooled=True).check().results
    wrong = {
        name: (kind, expected)
        for expected, functions in (*result["found"].items(), *result["static"].items())
        for name, kind in functions.items()
        if kind != expected
    }
    assert not wrong
    assert not result["unlike"]
    listed = result["listed"]
    assert len(listed) > 15 and set(listed.values()) == {"ROWS"}, listed
