"""Runs programs one after another in this process: inside.py DIGEST ROOM/NAME...

Each has its own working folder, below $PROGRAMS_FOLDER, which ranks share. Prints the values of
each. DIGEST is a hash of their texts, because a reference is stored under the words of its command.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

SHARED = os.environ.get("PROGRAMS_FOLDER")
if not SHARED and os.environ.get("PYTHONHASHSEED") != "0":  # as on ranks
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})

# Before the first program, so that each starts from the same state.
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from report import ENDED, files  # noqa: E402

HERE = Path(__file__).resolve().parent
AT_EXIT = tempfile.TemporaryDirectory(prefix="programs-")  # programs save there at exit


def run(program: str, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    keras.backend.clear_session()
    tf.compat.v1.reset_default_graph()
    ENDED.clear()
    start = time.monotonic()
    print(f"PROGRAM {program}", file=sys.stderr, flush=True)
    try:
        runpy.run_path(str(HERE / f"{program}.py"), run_name="__main__")
    except (Exception, SystemExit):
        traceback.print_exc()
        return {"error": traceback.format_exc()[-600:]}
    return {**ENDED, "seconds": round(time.monotonic() - start, 1)}


def main() -> None:
    ended = {}
    with tempfile.TemporaryDirectory(prefix="programs-") as own:
        folder = Path(SHARED or own)
        for program in sys.argv[2:]:
            ended[program] = run(program, folder / program)
            if not SHARED:
                ended[program]["files"] = files(folder / program)
        os.chdir(AT_EXIT.name)
    print("RESULT " + json.dumps(ended))


if __name__ == "__main__":
    main()
