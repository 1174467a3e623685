"""What our code assumes about Keras 3 and tf_keras where it decides by a class's name.

One process, averaging off.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from keras.src.backend.tensorflow import trainer
from keras.src.trainers import data_adapters  # noqa: F401 (loads the adapters' modules)
from keras.src.trainers.data_adapters import array_data_adapter, generator_data_adapter
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.keras import adapters
from tensorflow.mpi._src.keras import data as keras_data
from tensorflow.mpi._src.tf_keras import data as tf_keras_data
from tensorflow.mpi._src.variables import states, unwrap
from tf_keras.src.engine import data_adapter

ROWS = np.ones((6, 2), np.float32)
FLAVOURS: dict[str, Any] = {"keras": keras, "tf_keras": tf_keras}


def versions() -> dict[str, Any]:
    return {name: [hooking.version_of(name), hooking.last_tested(name)] for name in FLAVOURS}


def stops_a_batch(callback: Any) -> bool:
    """Whether one of its batch methods, as written by Keras, can stop a training."""
    functions = [getattr(callback, hook) for hook in adapters._BATCH_HOOKS]
    return any("stop_training" in inspect.getsource(function) for function in functions)


def reads_logs(callback: Any) -> bool:
    """Whether one of its own batch methods, as written by Keras, uses the logs."""
    hooks = [hook for hook in adapters._BATCH_HOOKS if hook in vars(callback)]
    sources = [textwrap.dedent(inspect.getsource(getattr(callback, hook))) for hook in hooks]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    return any(isinstance(node, ast.Name) and node.id == "logs" for node in nodes)


def callbacks() -> dict[str, Any]:
    facts = {}
    for name, flavour in FLAVOURS.items():
        kinds = {k: v for k, v in vars(flavour.callbacks).items() if inspect.isclass(v)}
        facts[name] = {
            "known": sorted(kinds),
            "modules": sorted({kind.__module__.partition(".")[0] for kind in kinds.values()}),
            "stop": sorted(k for k, v in kinds.items() if stops_a_batch(v)),
            "may stop": sorted(
                k
                for k, v in kinds.items()
                if adapters.has_batch_hook(v.__new__(v)) and k != "Callback"
            ),
            "read": sorted(k for k, v in kinds.items() if k != "Callback" and reads_logs(v)),
            "may read": sorted(k for k in kinds if k in adapters._READ_LOGS),
            "own": own_callbacks(flavour),
        }
    return facts


def own_callbacks(flavour: Any) -> list[list[bool]]:
    """Of callbacks of a script: whether those that look at batches have hooks and may read logs;
    and those that do not."""

    class Batches(flavour.callbacks.Callback):
        def on_train_batch_end(self, batch: Any, logs: Any = None) -> None:
            self.model.stop_training = True

    class Epochs(flavour.callbacks.EarlyStopping):
        pass

    class Lambda(flavour.callbacks.LambdaCallback):
        pass

    lambdas = (Lambda, flavour.callbacks.LambdaCallback)
    looking = [flavour.callbacks.Callback(), Epochs()]
    for one in looking:
        one.on_train_batch_end = print
    looking += [Batches(), *(kind(on_train_batch_end=print) for kind in lambdas)]
    others = [Epochs(), *(kind(on_epoch_end=print) for kind in lambdas)]
    hooks = ("on_train_batch_end",)
    return [
        [adapters.has_batch_hook(one) and adapters.may_read_logs(one, hooks) for one in looking],
        [adapters.has_batch_hook(one) or adapters.may_read_logs(one, hooks) for one in others],
    ]


def of_adapters() -> dict[str, Any]:
    """For the class names that decide: the class, and the batch sizes that are derived from it."""
    arrays = array_data_adapter.ArrayDataAdapter(ROWS, batch_size=4)
    generator = generator_data_adapter.GeneratorDataAdapter(iter([(ROWS, ROWS)]))
    iterator = trainer.TFEpochIterator(
        x=ROWS, batch_size=4, distribute_strategy=tf.distribute.get_strategy()
    )
    handler = data_adapter.DataHandler(ROWS, batch_size=4)
    tf_generator = data_adapter.GeneratorDataAdapter(iter([(ROWS, ROWS)]))
    return {
        "keras sizes": sorted(keras_data._array_sizes(arrays) or ()),
        "keras none": keras_data._array_sizes(generator),
        "keras generator": type(generator).__name__,
        "keras arrays": keras_data._is_arrays(x=ROWS) and not keras_data._is_arrays(x=iter([ROWS])),
        "keras iterator": sorted(
            {"_distributed_dataset", "data_adapter", "_num_batches", "steps_per_epoch"}
            & vars(iterator).keys()
        ),
        "keras dataset": isinstance(iterator._distributed_dataset, tf.data.Dataset),
        "tf_keras sizes": sorted(tf_keras_data._array_sizes(handler._adapter) or ()),
        "tf_keras generator": type(tf_generator).__name__,
        "tf_keras handler": sorted(
            {"_dataset", "_adapter", "_inferred_steps", "_model"} & vars(handler).keys()
        ),
    }


def random_states() -> dict[str, Any]:
    seed = keras.random.SeedGenerator(1).state
    dropout = keras.layers.Dropout(0.5)
    generator = tf.random.Generator.from_seed(1)
    weight = keras.Variable(np.ones(2, np.float32), name="kernel")
    return {
        "keras": states.is_random_state(seed.path),
        "keras dropout": states.is_random_state(dropout.seed_generator.state.path),
        "keras shape": list(seed.shape),
        "tensorflow": states.is_random_state(generator.state.name),
        "weight": states.is_random_state(weight.path),
        "value": isinstance(unwrap.tf_variable(weight), tf.Variable),
        "aggregation": keras.metrics.Mean().variables[0].aggregation,
    }


print(
    "RESULT",
    json.dumps(
        {
            "versions": versions(),
            "callbacks": callbacks(),
            "adapters": of_adapters(),
            "random states": random_states(),
        }
    ),
)
