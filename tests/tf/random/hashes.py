"""Prints how strings hash in this process, and what was started."""

import os
import sys

from common import result

if __name__ == "__main__":
    result(
        {
            "hash": hash("a string"),
            "argv": sys.argv,
            "optimize": sys.flags.optimize,
            "pid": os.getpid() == int(os.environ.get("SHELL_PID", os.getpid())),
            "prefix": sys.prefix,
            "loaded": sorted(m for m in sys.modules if m.startswith(("tensorflow", "_tensorflow"))),
            "seed": os.environ.get("PYTHONHASHSEED"),
        }
    )
