"""Times the parts of a process's start, from `import tensorflow` to its second step.

Prints one line of JSON. To time what averaging adds to the import, it wraps functions of
`tensorflow.mpi` before `tensorflow` is imported.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
import time
import types
from collections.abc import Callable
from typing import Any

parts: dict[str, float] = {}


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            parts[name] = parts.get(name, 0) + time.perf_counter() - begin

    return wrapper


def watch_bootstrap() -> None:
    """Imports the first modules of averaging, before their package exists, and wraps functions."""
    spec = importlib.util.find_spec("tensorflow")
    assert spec is not None
    stub = types.ModuleType("tensorflow")
    stub.__path__ = list(spec.submodule_search_locations or [])
    sys.modules["tensorflow"] = stub
    from tensorflow.mpi._src import bootstrap
    from tensorflow.mpi._src.runtime import c_api

    del sys.modules["tensorflow"]
    bootstrap.load = timed("averaging: load", bootstrap.load)
    bootstrap.verify = timed("averaging: hooks", bootstrap.verify)
    load_libraries = c_api.load

    def load() -> Any:
        library = timed("averaging: libraries", load_libraries)()
        if not hasattr(library.tfmpi_start, "timed"):
            start = library.tfmpi_start
            start.timed = True
            library.tfmpi_start = timed("averaging: MPI and engine", start)
        return library

    c_api.load = load


def main() -> None:
    begin = time.perf_counter()
    watch_bootstrap()
    parts["averaging: modules"] = time.perf_counter() - begin
    begin = time.perf_counter()
    import tensorflow as tf

    parts["import tensorflow"] = time.perf_counter() - begin
    begin = time.perf_counter()
    import keras

    parts["import keras"] = time.perf_counter() - begin
    begin = time.perf_counter()
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.layers.Input((32,)), keras.layers.Dense(64), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    parts["model"] = time.perf_counter() - begin
    x = tf.random.normal([64, 32], seed=1).numpy()
    y = x.sum(axis=1, keepdims=True)
    ends = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            ends.append(time.perf_counter())

    begin = time.perf_counter()
    model.fit(x, y, batch_size=32, verbose=0, callbacks=[Clock()])
    parts["first step"] = ends[0] - begin
    parts["second step"] = ends[1] - ends[0]
    parts["end of fit"] = time.perf_counter() - ends[1]
    print("PARTS " + json.dumps(parts), flush=True)


if __name__ == "__main__":
    main()
