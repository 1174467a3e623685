"""Reads a trace according to the Trace Event Format and rejects violations."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]
ROUNDING = 2e-3  # microseconds


class Trace:
    """`complete[rank][track]`: spans in order; `waits[rank]`: (begin, end) pairs."""

    def __init__(self, path: Path) -> None:
        document = json.loads(path.read_text())
        self.dropped: int = document["otherData"]["events_dropped"]
        self.tracks: dict[int, dict[int, str]] = defaultdict(dict)
        self.processes: dict[int, str] = {}
        self.complete: dict[int, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
        self.waits: dict[int, list[tuple[Event, Event]]] = defaultdict(list)
        begun: dict[tuple[str, str], Event] = {}
        for event in document["traceEvents"]:
            if event["ph"] == "M":
                self._metadata(event)
                continue
            assert event["ts"] >= 0
            if event["ph"] == "X":
                assert event["dur"] >= 0
                track = self.tracks[event["pid"]][event["tid"]]
                self.complete[event["pid"]][track].append(event)
            elif event["ph"] == "b":
                assert begun.setdefault((event["cat"], event["id"]), event) is event
            else:
                assert event["ph"] == "e"
                begin = begun.pop((event["cat"], event["id"]))
                assert (begin["name"], begin["pid"]) == (event["name"], event["pid"])
                assert begin["ts"] <= event["ts"]
                self.waits[event["pid"]].append((begin, event))
        assert not begun
        for tracks in self.complete.values():
            for events in tracks.values():
                _check_nesting(events)

    def _metadata(self, event: Event) -> None:
        if event["name"] == "process_name":
            self.processes[event["pid"]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            name = f"{event['args']['name']} {event['tid']}" if event["tid"] > 1 else ""
            self.tracks[event["pid"]][event["tid"]] = name or event["args"]["name"]

    def named(self, rank: int, name: str) -> list[Event]:
        """The spans with that name on all tracks of a rank, ordered by start."""
        events = [e for track in self.complete[rank].values() for e in track if e["name"] == name]
        return sorted(events, key=lambda event: event["ts"])

    def share_of_responses_at_one_time(self) -> float:
        """The share of collective operations whose spans overlap on all ranks."""
        by_rank = [
            sorted(
                (event for event in tracks["communication"] if "response" in event["args"]),
                key=lambda event: event["args"]["response"],
            )
            for tracks in self.complete.values()
        ]
        together = 0
        for events in zip(*by_rank, strict=True):
            assert all(e["args"]["tensors"] == events[0]["args"]["tensors"] for e in events)
            together += max(event["ts"] for event in events) < min(map(end, events))
        return together / len(by_rank[0])


def end(event: Event) -> float:
    """In microseconds."""
    return float(event["ts"] + event["dur"])


def _check_nesting(events: list[Event]) -> None:
    """Spans of one track are ordered, and either nested or disjoint."""
    open_spans: list[Event] = []
    last = 0.0
    for event in events:
        assert event["ts"] >= last
        last = event["ts"]
        while open_spans and end(open_spans[-1]) <= event["ts"] + ROUNDING:
            open_spans.pop()
        assert not open_spans or end(event) <= end(open_spans[-1]) + ROUNDING, (
            open_spans[-1],
            event,
        )
        open_spans.append(event)
