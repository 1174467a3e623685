"""Runs that end with an error or a warning.

errors_ends.py WAY RANK            that rank (-1: all) ends in a way of ENDS; prints AT, the time
errors_ends.py exit                the exit function of rank 0 raises; prints AT, the time
errors_ends.py daemon              daemon threads train on when the script has ended
errors_ends.py stall               rank 1 is late, then rank 0; then all continue
errors_ends.py same                every rank has the same data
errors_ends.py clustered           for XLA's auto-clustering
errors_ends.py nothing             runs no optimizer op
errors_ends.py allreduce           runs no optimizer op but a collective
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

# Registered before TensorFlow is imported, so it runs last.
atexit.register(lambda: print("FROZEN", gc.get_freeze_count(), flush=True))

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from common import encode, place, result  # noqa: E402
from tensorflow.mpi._src.lifecycle import engine  # noqa: E402
from tensorflow.mpi._src.runtime import c_api  # noqa: E402

v1 = tf.compat.v1
RANK, SIZE = place()
MODE = sys.argv[1]
LATE = 8  # seconds by which a rank is late in `stall`


class Model:
    """One variable; each step averages its distance to the ranks' points."""

    def __init__(self) -> None:
        self.variable = tf.Variable(np.zeros(2), name="weights")
        self.optimizer = v1.train.GradientDescentOptimizer(1.0)

    def step(self, point: float = RANK + 1.0) -> None:
        self.optimizer.apply_gradients([(tf.fill([2], np.float64(point)), self.variable)])


def stop(way: str, who: int) -> None:
    model = Model()
    for _ in range(3):
        model.step()
    with tf.GradientTape():  # the first one waits for all ranks
        pass
    if who in (RANK, -1):
        print("AT", time.time(), flush=True)
        return ENDS[way](model)
    if way in ("well", "well at once"):
        return model.step()  # the average over the remaining ranks
    if way == "before a save":
        tf.train.Checkpoint(variable=model.variable).write("never.ckpt")
    while True:
        model.step()


def broken() -> None:
    raise RuntimeError(f"the file of rank {RANK} is broken")


def exits(code: Any) -> None:
    try:
        broken()
    except RuntimeError:
        sys.exit(code)


@tf.function
def checked(value: Any) -> Any:
    return tf.debugging.check_numerics(tf.math.log(value), "the loss is bad")


def with_another_hook(_: Model) -> None:
    sys.excepthook = lambda *_: print("shown by another package", file=sys.stderr)
    broken()


def in_a_thread(_: Model) -> None:
    def train() -> None:
        model = Model()
        with tf.GradientTape():
            tf.reduce_sum(model.variable)
        broken()

    thread = threading.Thread(target=train, name="trainer")
    thread.start()
    thread.join()
    time.sleep(30)


def in_a_generator(_: Model) -> None:
    """A thread of tf.data's runs the script's code when Python exits."""
    import keras

    def samples() -> Any:
        while True:
            time.sleep(0.02)
            yield np.ones((4, 1)), np.ones((4, 1))

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                broken()

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(samples(), steps_per_epoch=6, verbose=0, callbacks=[Stops()])


class Cycle:
    """Only the garbage collector ends it, possibly before a file is completely written."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self, write: Any = os.write) -> None:
        write(1, b"COLLECTED\n")


cycle = Cycle()


class Waits:
    """Keeps Python from exiting."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()

    def __del__(self) -> None:
        self.lock.acquire()


def never(_: Model) -> None:
    globals()["waits"] = Waits()


def with_a_slow_reader(_: Model) -> None:
    """The reader of the output sleeps, its pipe is full, and Python still has a line to write."""
    reader = subprocess.Popen("sleep 20; cat", shell=True, stdin=subprocess.PIPE)
    assert reader.stdin is not None
    os.write(reader.stdin.fileno(), b"\n" * fcntl.fcntl(reader.stdin, fcntl.F_GETPIPE_SZ))
    sys.stdout = os.fdopen(os.dup(reader.stdin.fileno()), "w")
    print("THE LAST LINE")


ENDS: dict[str, Any] = {
    "slow reader": with_a_slow_reader,
    "generator": in_a_generator,
    "never": never,
    "raise": lambda _: broken(),
    "before a save": lambda _: broken(),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "crash": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "leave": lambda _: os._exit(3),
    "exit code": lambda _: exits(3),
    "exit words": lambda _: exits("no such file"),
    "another hook": with_another_hook,
    "thread": in_a_thread,
    "graph": lambda _: checked(tf.constant([-1.0])),
    "well": lambda _: sys.exit(0),
    "well at once": lambda _: os._exit(0),
}


def exit_function() -> None:
    """A function that rank 0 calls at its end raises."""

    def fail() -> None:
        raise ValueError("no space")

    if RANK == 0:
        print("AT", time.time(), flush=True)
        assert engine._at_end is not None
        engine._at_end = engine._at_end._replace(in_order=fail)
        return
    while True:
        tf.mpi.barrier()


def daemon() -> None:
    """A thread trains on when the script has ended."""

    def train() -> None:
        model = Model()
        with tf.GradientTape():
            tf.reduce_sum(model.variable)
        while True:
            model.step()
            steps.append(1)

    steps: list[int] = []
    threading.Thread(target=train, name="trainer", daemon=True).start()
    while len(steps) < 10:
        time.sleep(0.01)


def meet() -> None:
    """A barrier, however far apart the ranks are: if one gives up, all do."""
    while True:
        try:
            return tf.mpi.barrier()
        except tf.errors.DeadlineExceededError:
            pass


def attempt(model: Model) -> list[Any]:
    """[error, seconds] of a step."""
    start = time.monotonic()
    try:
        model.step()
    except tf.errors.OpError as error:
        return [f"{type(error).__name__}: {error.message}", time.monotonic() - start]
    return ["", time.monotonic() - start]


def stall() -> None:
    model = Model()
    meet()
    model.step()
    printed = {}
    for who in (1, 0):
        meet()
        if who == RANK:
            time.sleep(LATE)
        printed[f"late {who}"] = attempt(model)
    meet()
    model.step()
    result(printed | {"value": encode(model.variable.numpy())})


def clustered() -> None:
    model = Model()

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model.variable - x))
        gradients = tape.gradient(loss, [model.variable])
        model.optimizer.apply_gradients(zip(gradients, [model.variable]))
        return loss

    step(tf.constant([RANK, 1.0], tf.float64))
    stats = c_api.stats()
    counts = {key: stats[key] for key in ("applied", "gradients")}

    table = tf.Variable(np.zeros([4, 2]), name="table")

    @tf.function
    def step_by_rows(indices: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.gather(table, indices) - 1.0))
        gradients = tape.gradient(loss, [table])
        model.optimizer.apply_gradients(zip(gradients, [table]))
        return loss

    step_by_rows(tf.constant([0, 1 + RANK]))
    values = {"value": encode(model.variable.numpy()), "table": encode(table.numpy())}
    result(counts | values)


def main() -> None:
    if MODE in ENDS:
        stop(MODE, int(sys.argv[2]))
    elif MODE == "exit":
        exit_function()
    elif MODE == "daemon":
        daemon()
    elif MODE == "stall":
        stall()
    elif MODE == "same":
        model = Model()
        for _ in range(4):
            model.step(1.0)
    elif MODE == "clustered":
        clustered()
    elif MODE == "allreduce":
        tf.mpi.allreduce(1.0)


main()
