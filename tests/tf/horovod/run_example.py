"""Runs an example of Horovod's unmodified, with little data and few steps:

    run_example.py [--v1] SCRIPT ...

Nothing can be downloaded, so digits of noise replace MNIST, with another level for each class, and
words of noise replace word2vec's text. Prints the losses, digests of the models' weights, and the
written files. --v1: the script gets tf.compat.v1 as `tensorflow`.
"""

from __future__ import annotations

import builtins
import importlib
import io
import logging
import os
import re
import sys
import types
import zipfile
import zlib
from typing import Any

import numpy as np
import tensorflow as tf
from common import result

STEPS, EPOCHS, ROWS = 12, 2, 1536
WORDS = 2001  # steps of word2vec, which prints its loss every 2000 steps
TEXT_BYTES = 31_344_016  # the size that word2vec requires of its download
v1 = tf.compat.v1
models: list[Any] = []
losses: list[float] = []
of_sessions: list[Any] = []  # values of trained variables


def digits(*_: Any, **__: Any) -> Any:
    """The same on every rank, like a download."""
    draw = np.random.RandomState(0)
    labels = draw.randint(0, 10, ROWS)
    pixels = draw.randint(0, 40, (ROWS, 28, 28)) + 20 * labels[:, None, None]
    return (pixels.astype(np.uint8), labels.astype(np.uint8)), (
        pixels[:200].astype(np.uint8),
        labels[:200].astype(np.uint8),
    )


def fit_of(original: Any) -> Any:
    def limited(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name, limit in {"epochs": EPOCHS, "steps_per_epoch": STEPS}.items():
            if kwargs.get(name) is not None:
                kwargs[name] = min(int(kwargs[name]), limit)
        history = original(self, *args, **kwargs)
        losses.extend(float(loss) for loss in history.history.get("loss", []))
        return history

    return limited


def init_of(original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        models.append(self)

    return init


def few_steps_of_keras(keras: Any) -> None:
    keras.datasets.mnist.load_data = digits
    keras.Model.fit = fit_of(keras.Model.fit)
    keras.Model.__init__ = init_of(keras.Model.__init__)


def few_steps_of_datasets() -> None:
    for kind in (tf.data.Dataset, v1.data.Dataset):
        take = kind.take
        kind.take = lambda self, count, take=take, **kwargs: take(
            self, min(int(count), STEPS), **kwargs
        )


def note_values(session: Any) -> None:
    of_sessions.extend(session.run(session.graph.get_collection("trainable_variables")))


class AtTheEnd(v1.train.SessionRunHook):  # type: ignore[name-defined]
    def end(self, session: Any) -> None:
        note_values(session)


def few_steps_of_sessions() -> None:
    stop, monitored, leave = (
        v1.train.StopAtStepHook.__init__,
        v1.train.MonitoredTrainingSession,
        v1.Session.__exit__,
    )

    def with_values(*args: Any, hooks: Any = (), **kwargs: Any) -> Any:
        return monitored(*args, hooks=[*hooks, AtTheEnd()], **kwargs)

    def left(self: Any, *why: Any) -> Any:
        if why[0] is None:
            note_values(self)
        return leave(self, *why)

    v1.train.StopAtStepHook.__init__ = lambda self, last_step: stop(
        self, last_step=min(last_step, STEPS)
    )
    v1.train.MonitoredTrainingSession = with_values
    v1.Session.__exit__ = left


def text_of_noise(_: str, filename: str) -> tuple[str, None]:
    """Replaces urlretrieve: an archive of the required size, after a hole."""
    draw = np.random.RandomState(0)
    often = draw.randint(0, 3000, 200_000)
    words = " ".join(f"w{number}" for number in [*often, *range(60_000)])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text8", words)
    with open(filename, "wb") as file:
        file.seek(TEXT_BYTES - len(packed.getvalue()))
        file.write(packed.getvalue())
    return filename, None


def few(*arguments: int) -> range:
    """Replaces range in a script whose loop would take an hour."""
    return range(WORDS) if arguments[0] > 20_000 else range(*arguments)


def of_v1(name: str, *rest: Any) -> Any:
    """Replaces `import` for the script: what TensorFlow 1 had under that name.

    TensorFlow 2.21 has no tf.estimator; its replacement has the names of its modes.
    """
    found = builtins.__import__(name, *rest)
    first, _, path = name.partition(".")
    if first != "tensorflow":
        return found
    module = v1
    if len(rest) > 2 and rest[2]:  # from NAME import ...
        for word in path.split(".") if path else ():
            module = getattr(module, word)
    return module


class Listening:
    """A standard output that also records the losses that a script prints."""

    def __init__(self, out: Any) -> None:
        self.out, self.line = out, ""

    def write(self, text: str) -> int:
        *lines, self.line = (self.line + text).split("\n")
        for line in lines:
            note_losses(line)
        return int(self.out.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.out, name)


class Listener(logging.Handler):
    """Records the losses that LoggingTensorHook writes to TensorFlow's log."""

    def emit(self, record: logging.LogRecord) -> None:
        note_losses(record.getMessage())


def note_losses(text: str) -> None:
    if not any(text.startswith(word) for word in ("Test loss", "Iter")):
        found = re.findall(r"(?:Loss: |\bloss = )([\d.]+)", text)
        losses.extend(map(float, found))
        average = re.match(r"Average loss at step +\d+ *: +([\d.]+)", text)
        losses.extend([float(average[1])] if average else [])


def prepare_v1(script: dict[str, Any]) -> None:
    v1.disable_v2_behavior()
    model: Any = importlib.import_module("tf_keras.src.engine.training_v1").Model
    model.fit = fit_of(model.fit)
    few_steps_of_sessions()
    v1.estimator = types.SimpleNamespace(ModeKeys=types.SimpleNamespace(TRAIN="train"))
    importlib.import_module("urllib.request").urlretrieve = text_of_noise  # type: ignore[attr-defined]
    logging.getLogger("tensorflow").addHandler(Listener())
    script["__builtins__"] = {**vars(builtins), "__import__": of_v1, "range": few}


as_v1 = sys.argv[1] == "--v1"
path, sys.argv = sys.argv[1 + as_v1], sys.argv[1 + as_v1 :]
main = types.ModuleType("__main__")  # tf.app.run calls its main()
namespace = vars(main)
namespace["__file__"] = path
for api in (tf.keras, v1.keras)[: 1 + as_v1]:
    few_steps_of_keras(api)
few_steps_of_datasets()
if as_v1:
    prepare_v1(namespace)
sys.stdout = Listening(sys.stdout)
with open(path) as file:
    code = compile(file.read(), path, "exec")
this, sys.modules["__main__"] = sys.modules["__main__"], main
try:
    exec(code, namespace)
except SystemExit as end:  # from tf.app.run
    assert not end.code, end.code
values = list(of_sessions)
for one in {id(one): one for one in models}.values() if not of_sessions else ():
    values += tf.keras.backend.batch_get_value(one.trainable_weights)
result(
    {
        "losses": losses,
        "weights": [zlib.crc32(np.ascontiguousarray(value).tobytes()) for value in values],
        "files": sorted(os.listdir(".")),
    }
)
