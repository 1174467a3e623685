"""The analysis of common losses: how they depend on samples, according to their ops."""

from __future__ import annotations

from launch import launch


def test_kinds_of_losses_are_recognized(scripts) -> None:
    (result,) = launch(scripts / "kinds.py", np=0, timeout=300, pooled=True).check().results
    wrong = {
        name: (kind, expected)
        for expected, functions in (*result["found"].items(), *result["static"].items())
        for name, kind in functions.items()
        if kind != expected
    }
    assert not wrong
    assert not result["unlike"]
    assert result["factors"] == [6, 6]
    assert not result["splits"], "a metric's result"
    assert [name for name, found in result["drawing"].items() if not found] == ["three steps"]
    listed = result["listed"]
    assert len(listed) > 15 and set(listed.values()) == {"ROWS"}, listed
