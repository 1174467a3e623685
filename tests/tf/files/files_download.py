"""All ranks fetch an archive twice and read its contents, with each Keras.

files_download.py URL CACHE
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf  # noqa: F401 (starts the ranks)
from common import result

URL, CACHE = sys.argv[1], Path(sys.argv[2])
sizes: dict[str, list[int]] = {}
for name in ("keras", "tf_keras"):
    keras: Any = importlib.import_module(name)
    cache = CACHE / name
    cache.mkdir(exist_ok=True)
    sizes[name] = []
    for _ in range(2):
        keras.utils.get_file("data.tar", f"{URL}/{name}.tar", cache_dir=str(cache), extract=True)
        sizes[name].append(sum(len(file.read_bytes()) for file in cache.rglob("*.bin")))
result(sizes)
