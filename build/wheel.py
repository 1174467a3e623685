#!/usr/bin/env python3
"""Builds and verifies the patched TensorFlow wheel and maintains its patches: see --help."""

import os
import sys

if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit("wheel.py: needs Python 3.10 or newer: run it with a newer one")

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from wheelbuilder.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
