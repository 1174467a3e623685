"""Turns single runs into the table: medians, spreads, shares of the ideal; CSV and Markdown."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.columns import Column

FIELDS = [
    "workload",
    "style",
    "column",
    "ranks",
    "runs",
    "turns",
    "rate",
    "rate_min",
    "rate_max",
    "share",
    "share_min",
    "share_max",
    "peak_rss_mb",
    "round_trip_min",
    "round_trip_max",
    "status",
    "note",
]
Row = dict[str, Any]


def _runs_of_cell(records: Sequence[Row], workload: str, style: str, column: str) -> dict[int, Row]:
    """The successful runs of a cell, by repeat."""
    return {
        record["repeat"]: record
        for record in records
        if (record["workload"], record["style"], record["column"]) == (workload, style, column)
        and record["status"] == "ok"
    }


def shares(runs: dict[int, Row], ideal: dict[int, Row]) -> list[float]:
    """Each run's rate relative to the ideal in the same repeat, else to the ideal's median.

    The runs of one repeat are adjacent in time, so that a slowdown of the machine affects both. If
    runs took turns, each turn's rate is relative to the ideal's adjacent turn.
    """
    if not ideal:
        return []
    median = statistics.median(record["rate"] for record in ideal.values())
    found = []
    for repeat, record in runs.items():
        if repeat not in ideal:
            found.append(record["rate"] / median)
        elif took_turns(record) and took_turns(ideal[repeat]):
            pairs = zip(record["turn_rates"], ideal[repeat]["turn_rates"])
            found += [own / other for own, other in pairs]
        else:
            found.append(record["rate"] / ideal[repeat]["rate"])
    return found


def took_turns(record: Row) -> bool:
    """Whether this run's rate is the median of several turns."""
    return len(record.get("turn_rates", [])) > 1


def _spread(values: Sequence[float], turns: bool) -> tuple[float, float]:
    """Minimum and maximum; the quartiles for turns, of which there are many."""
    if not turns or len(values) < 2:
        return min(values), max(values)
    quartiles = statistics.quantiles(values, n=4, method="inclusive")
    return quartiles[0], quartiles[2]


def rows(records: Sequence[Row]) -> list[Row]:
    """One row per cell, in the order in which the cells first ran.

    rate: steps per second and rank; share: relative to the ideal with as many ranks. Both are
    medians with minimum and maximum over the runs; if runs took turns, medians with quartiles over
    the turns.
    """
    seen: dict[tuple[str, str, str], list[Row]] = {}
    for record in records:
        key = (record["workload"], record["style"], record["column"])
        seen.setdefault(key, []).append(record)
    table = []
    for (workload, style, column), all_runs in seen.items():
        good = _runs_of_cell(records, workload, style, column)
        row: Row = dict.fromkeys(FIELDS, "")
        row.update(workload=workload, style=style, column=column, ranks=all_runs[0]["ranks"])
        row.update(runs=len(good), status="ok" if good else all_runs[-1]["status"])
        row["note"] = "; ".join(dict.fromkeys(run["note"] for run in all_runs if run["note"]))
        round_trips = [ns for run in good.values() for ns in run.get("round_trips", []) if ns]
        if round_trips:
            row.update(round_trip_min=min(round_trips), round_trip_max=max(round_trips))
        if good:
            turns = any(took_turns(record) for record in good.values())
            rates = [
                rate
                for record in good.values()
                for rate in (record["turn_rates"] if turns else [record["rate"]])
            ]
            low, high = _spread(rates, turns)
            row.update(rate=statistics.median(rates), rate_min=low, rate_max=high)
            row["turns"] = len(rates) if turns else ""
            row["peak_rss_mb"] = max(record["peak_rss"] for record in good.values()) / 1e6
            found = shares(
                good, _runs_of_cell(records, workload, style, Column.parse(column).ideal)
            )
            if found:
                low, high = _spread(found, turns)
                row.update(share=statistics.median(found), share_min=low, share_max=high)
        table.append(row)
    return table


def to_csv(table: Sequence[Row], header: bool = True) -> str:
    """All fields; numbers have four significant digits."""
    output = io.StringIO()
    writer = csv.DictWriter(output, FIELDS, lineterminator="\n")
    if header:
        writer.writeheader()
    for row in table:
        writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})
    return output.getvalue()


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row["status"] != "ok":
        return "fails" if row["status"] == "fails" else row["note"] or row["status"]
    if row["column"].startswith("independent:") and "+" not in row["column"]:
        spread = (row["rate_max"] - row["rate_min"]) / row["rate"] / 2
        return f"{row['rate']:.1f}/s ± {spread:.0%}"
    if row["share"] == "":
        return f"{row['rate']:.1f}/s"
    text = f"{row['share']:.2f}"
    return text + (
        f" ({row['share_min']:.2f}..{row['share_max']:.2f})"
        if row["runs"] > 1 or row["turns"]
        else ""
    )


def to_markdown(table: Sequence[Row]) -> str:
    """One line per workload and style, with notes below.

    The last column is the round trip between two cores before and after the runs
    (benchmarks/cores.py).
    """
    names = list(dict.fromkeys(row["column"] for row in table))
    by_key = {(row["workload"], row["style"], row["column"]): row for row in table}
    lines = [
        "| workload | style | " + " | ".join(names) + " | round trip |",
        "| --- | --- |" + " --- |" * (len(names) + 1),
    ]
    for workload, style in dict.fromkeys((row["workload"], row["style"]) for row in table):
        found = [_cell(by_key.get((workload, style, name))) for name in names]
        round_trips = [
            row[edge]
            for row in table
            if (row["workload"], row["style"]) == (workload, style)
            for edge in ("round_trip_min", "round_trip_max")
            if row[edge] != ""
        ]
        found.append(f"{min(round_trips):.0f}..{max(round_trips):.0f} ns" if round_trips else "")
        lines.append(f"| {workload} | {style} | " + " | ".join(found) + " |")
    notes = [
        f"- {row['workload']} {row['style']} {row['column']}: {row['note']}"
        for row in table
        if row["note"] and row["status"] != "skipped"
    ]
    legend = (
        "Columns are KIND:RANKS. Independent processes: steps per second and rank, with half the "
        "spread. All others: relative to as many independent processes, median (min..max)."
    )
    if any(row["turns"] for row in table):
        legend = legend.replace("min..max", "quartiles of the turns")
    return "\n".join([*lines, "", legend, *([""] if notes else []), *notes]) + "\n"
