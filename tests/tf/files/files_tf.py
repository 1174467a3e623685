"""Writes with each of TensorFlow's writers into one folder; rank 0 is late for every fifth save.

    files_tf.py DIR     {rank} in DIR stands for this rank's number

Prints what each save returned, whether its file existed when it returned, the duration of the
shortest, and how many bytes this process wrote to files and pipes.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from common import result
from files_common import written

v1 = tf.compat.v1
RANK = tf.mpi.rank() if hasattr(tf, "mpi") else 0
DIRECTORY = Path(sys.argv[1].format(rank=RANK))
LATE = 0.3
FLOATS = 100_000

returned: dict[str, Any] = {}
there: dict[str, bool] = {}
seconds: list[float] = []


def save(name: str, function: Any, *files: str) -> None:
    """Calls `function` and records whether `files` of DIRECTORY exist when it returns."""
    if RANK == 0 and len(seconds) % 5 == 0:
        time.sleep(LATE)
    start = time.monotonic()
    value = function()
    seconds.append(time.monotonic() - start)
    value = os.fsdecode(value) if value is not None else None
    returned[name] = value
    there[name] = all((DIRECTORY / file).exists() for file in files)


def until_all_have_looked() -> None:
    """Waits before rank 0 removes an old file that a slower rank may still look for."""
    if hasattr(tf, "mpi"):
        tf.mpi.barrier()


class Module(tf.Module):
    def __init__(self, value: tf.Variable) -> None:
        super().__init__()
        self.value = value

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def times(self, x: Any) -> Any:
        return x * self.value


def checkpoints(value: tf.Variable) -> None:
    checkpoint = tf.train.Checkpoint(value=value)
    path = DIRECTORY / "checkpoint"
    save("save", lambda: checkpoint.save(path / "a"), "checkpoint/a-1.index")
    save("latest", lambda: tf.train.latest_checkpoint(path), "checkpoint/checkpoint")
    save("write", lambda: checkpoint.write(path / "b"), "checkpoint/b.index")
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    lazy = tf.train.Checkpoint(value=value)
    save("async", lambda: [lazy.write(path / "c", options), lazy.sync()][0], "checkpoint/c.index")
    manager = tf.train.CheckpointManager(checkpoint, DIRECTORY / "managed", max_to_keep=2)
    for number in range(2, 5):
        save(f"managed {number}", manager.save, f"managed/ckpt-{number}.index")
        until_all_have_looked()
    save("managed", lambda: " ".join(manager.checkpoints))
    save("module", lambda: tf.saved_model.save(Module(value), DIRECTORY / "module"),
         "module/saved_model.pb", "module/variables/variables.index")  # fmt: skip


def summaries() -> None:
    writer = tf.summary.create_file_writer(str(DIRECTORY / "summaries"))

    @tf.function
    def traced(x: Any) -> None:
        with writer.as_default():
            tf.summary.scalar("traced", x, tf.constant(1, tf.int64))

    with writer.as_default(step=3):
        tf.summary.scalar("scalar", 2.0)
        tf.summary.histogram("histogram", [1.0, 2.0])
        tf.summary.graph(traced.get_concrete_function(tf.constant(1.0)).graph)
        tf.summary.trace_on(graph=True)
        traced(tf.constant(1.0))
        tf.summary.trace_export("trace", step=1)
    writer.flush()
    writer.close()
    try:
        writer.init()
    except RuntimeError as error:  # TensorFlow's own on rank 0
        assert "is already closed" in str(error)
    else:
        raise AssertionError("a closed writer accepts use")
    tf.profiler.experimental.start(str(DIRECTORY / "profile"))
    tf.profiler.experimental.stop()


def session() -> None:
    path = DIRECTORY / "v1"
    with v1.Graph().as_default(), v1.Session() as sess:
        v1.get_variable("value", initializer=np.full(FLOATS, 1 + RANK, "f"))
        sess.run(v1.global_variables_initializer())
        saver = v1.train.Saver(max_to_keep=2)
        for step in range(3):
            files = (f"v1/model-{step}.index", f"v1/model-{step}.meta", "v1/checkpoint")
            save(f"v1 {step}", lambda s=step: saver.save(sess, str(path / "model"), s), *files)
            until_all_have_looked()
        save("v1", lambda: " ".join(saver.last_checkpoints))
        for name, kwargs in {"events": {}, "session": {"session": sess}}.items():
            writer = v1.summary.FileWriter(str(path / name), sess.graph, **kwargs)
            summary = v1.Summary(value=[v1.Summary.Value(tag="x", simple_value=1.0)])
            writer.add_summary(summary, 1)
            writer.flush()
            writer.close()
        builder = v1.saved_model.Builder(str(path / "built"))
        builder.add_meta_graph_and_variables(sess, ["serve"])
        save("built", builder.save, "v1/built/saved_model.pb")
        save("graph", lambda: tf.io.write_graph(sess.graph, str(path), "graph.pbtxt"),
             "v1/graph.pbtxt")  # fmt: skip


def monitored() -> None:
    with v1.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        v1.summary.scalar("step", step)
        train = step.assign_add(1)
        hooks = [v1.train.StopAtStepHook(5)]
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(DIRECTORY / "monitored"), save_checkpoint_steps=2, hooks=hooks
        ) as sess:
            while not sess.should_stop():
                sess.run(train)


def main() -> None:
    before = written()
    checkpoints(tf.Variable(np.full(FLOATS, 1 + RANK, "f")))
    summaries()
    session()
    monitored()
    result(
        {
            "returned": returned,
            "there": there,
            "shortest": min(seconds),
            "longest": max(seconds),
            "written": written() - before,
        }
    )


main()
