"""The list of messages is current, and tests look for their words."""

from __future__ import annotations

import collections
from pathlib import Path

from tree import messages

HOW = "write it again: python tests/tree/messages.py"
# How many messages of a file no test looks for. It must not grow: a new message needs a test.
UNTESTED: dict[str, int] = {
    "core/engine/recovery.cc": 1,
    "glue/xla/compiled_call_gpu.cc": 1,
}


def untested() -> list[messages.Message]:
    """The messages without a test, except for internal errors."""
    found = messages.tests()
    return [m for m, test in found.items() if not test and m.subject != messages.INTERNAL]


def test_the_page_is_written_from_the_source() -> None:
    assert messages.PAGE.read_text() == messages.page(), HOW


def test_messages_have_tests() -> None:
    counts = collections.Counter(message.file for message in untested())
    new = {file: count for file, count in counts.items() if count > UNTESTED.get(file, 0)}
    texts = "\n".join(message.text for message in untested() if message.file in new)
    assert not new, f"one of these is new, or its test looks for other words:\n{texts}"
    fewer = {file: counts[file] for file in UNTESTED if counts[file] < UNTESTED[file]}
    assert not fewer, "well done: lower these numbers in UNTESTED"


SOURCES = {
    "a.py": """
'A module that says something.'
def f(path, rows):
    'Says it.'
    if not rows:
        raise ValueError(f"{path} has no rows: give " "another")
    log.once(f"each of {len(rows)} rows is new", key="a key of it")
    values.run("what ranks ask for")
""",
    "b.cc": """
// "a comment is no message"
return Status(Code::kUnavailable, "rank " + std::to_string(rank_) + " has died; see its output");
""",
    "c.sh": """
[[ -d $venv ]] || die "no environment at $venv" "pass --venv"
""",
}
FOUND = {
    ("{path} has no rows: give another", "ValueError"),
    ("each of {len} rows is new", "Line, once"),
    ("rank {rank} has died; see its output", "UnavailableError"),
    ("no environment at {venv}; next: pass --venv", "Ends install.sh"),
}


def test_messages_are_found_in_each_language(tmp_path: Path) -> None:
    found: set[tuple[str, str]] = set()
    for name, text in SOURCES.items():
        (tmp_path / name).write_text(text)
        read = messages.READERS[(tmp_path / name).suffix]
        found |= {(message.text, message.kind) for message in read(tmp_path / name, name)}
    assert found == FOUND
