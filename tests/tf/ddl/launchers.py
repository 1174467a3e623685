"""The command lines that horovodrun and ddlrun build. Starts nothing."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys

from tensorflow.mpi._src.launch import commands, ddlrun, horovodrun


class Became(Exception):
    pass


def become(path: str, words: list[str]) -> None:
    raise Became(" ".join(words[1:]))


checked: list[str] = []


def node_check(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
    checked.append(" ".join(words[1:]))
    bad = "bad" in " ".join(words)
    if "slow" in " ".join(words):
        raise subprocess.TimeoutExpired(words, 60)
    return subprocess.CompletedProcess(words, int(bad), "node bad has no TensorFlow" * bad, "")


os.execv = become  # type: ignore[assignment]
subprocess.run = node_check  # type: ignore[assignment]
found: dict[str, object] = {}
for line in json.loads(sys.argv[1]):
    name, *arguments = line.split()
    checked.clear()
    said = io.StringIO()
    main = {"horovodrun": horovodrun.main, "ddlrun": ddlrun.main}[name]
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            result = f"exit {main(arguments)}"
        except Became as words:
            result = str(words)
        except SystemExit as end:
            result = f"exit {end.code}"
    found[line] = [result, list(checked), said.getvalue()]
folder = sys.argv[2]
said = io.StringIO()
with contextlib.redirect_stdout(said):
    commands.main(folder)
found["commands"] = said.getvalue()
print("RESULT " + json.dumps(found))
