"""Gradients that a script clips or applies itself, and gradients of scaled losses: prints weights
by case.

Runs unchanged on ranks and as a plain process: fit and tf.mpi.shard give each rank its part of
every batch, and the script never asks for its rank. The argument `quick` selects some of the cases.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from common import compiles, encode, result, single_threaded_ops

STEPS, BATCH, ROWS, WIDTH = 5, 12, 20, 4
RANDOM = np.random.default_rng(5)
IDS = RANDOM.integers(0, 9, size=(STEPS * BATCH, 2))
Y = RANDOM.normal(size=(STEPS * BATCH, 1)).astype("f")
CLIP, RATE = 0.1, 0.5


def update_by_hand(model: Any, gradients: list[Any]) -> None:
    for variable, gradient in zip(model.trainable_variables, gradients):
        plain = getattr(variable, "value", variable) if hasattr(variable, "path") else variable
        plain.assign_sub(RATE * tf.convert_to_tensor(gradient))


def by_momentum(model: Any, gradients: list[Any]) -> None:
    """With the script's own slots, and only if the norm is finite."""
    norm = tf.linalg.global_norm(gradients)

    def move() -> Any:
        for variable, slot, gradient in zip(model.trainable_variables, model.moments, gradients):
            slot.assign(0.9 * slot + tf.convert_to_tensor(gradient))
            plain = getattr(variable, "value", variable) if hasattr(variable, "path") else variable
            plain.assign_sub(0.1 * slot)
        return norm

    tf.cond(tf.math.is_finite(norm), move, lambda: norm)


def clipped(model: Any, gradients: list[Any]) -> None:
    gradients, _ = tf.clip_by_global_norm(gradients, CLIP)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))


def clipped_each(model: Any, gradients: list[Any]) -> None:
    gradients = [tf.clip_by_norm(gradient, CLIP) for gradient in gradients]
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))


def by_raw_ops(model: Any, gradients: list[Any]) -> None:
    """With optimizer ops but without an optimizer."""
    for variable, gradient in zip(model.trainable_variables, gradients):
        plain = getattr(variable, "value", variable) if hasattr(variable, "path") else variable
        given = {"var": plain.handle, "alpha": RATE}
        if isinstance(gradient, tf.IndexedSlices):
            given |= {"l1": 0.0, "l2": 0.0, "grad": gradient.values, "indices": gradient.indices}
            tf.raw_ops.ResourceSparseApplyProximalGradientDescent(**given)
        else:
            tf.raw_ops.ResourceApplyGradientDescent(**given, delta=gradient)


def fitted(
    api: Any, update: Callable[[Any, list[Any]], None], batch: int = BATCH, **options: Any
) -> dict[str, Any]:
    """With a custom train_step."""

    class Model(api.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            update(self, tape.gradient(loss, self.trainable_variables))
            return {"mse": loss}

    api.utils.set_random_seed(9)
    layers = api.layers
    model = Model(
        [
            api.Input((2,), dtype="int32"),
            layers.Embedding(ROWS, WIDTH),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    zeros = [tf.zeros(v.shape) for v in model.trainable_variables]
    model.moments = [tf.Variable(zero, trainable=False) for zero in zeros]
    model.compile(api.optimizers.Adam(0.05), **options)
    model.fit(IDS, Y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
    return {f"{n}": encode(array) for n, array in enumerate(model.get_weights())}


def made_by_hand(api: Any, **options: Any) -> dict[str, Any]:
    """A whole-batch gradient that no tape computed, applied by an optimizer op."""
    x = np.random.default_rng(4).normal(size=(60, 3)).astype("f")

    class Model(api.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            error = self(x, training=True) - y
            (kernel,) = self.trainable_variables
            plain = getattr(kernel, "value", kernel) if hasattr(kernel, "path") else kernel
            gradient = tf.matmul(x, error, transpose_a=True) / tf.cast(tf.shape(x)[0], tf.float32)
            tf.raw_ops.ResourceApplyGradientDescent(var=plain.handle, alpha=RATE, delta=gradient)
            return {"error": tf.reduce_mean(error)}

    api.utils.set_random_seed(9)
    model = Model([api.Input((3,)), api.layers.Dense(1, use_bias=False)])
    model.compile(api.optimizers.SGD(0.1), **options)
    model.fit(x, Y, batch_size=7, epochs=2, shuffle=False, verbose=0)
    return {f"{n}": encode(array) for n, array in enumerate(model.get_weights())}


def scaled(
    api: Any, scale: float, own_step: bool = False, ordinary: bool = False, **options: Any
) -> dict[str, Any]:
    """A loss scale at which a few float16 values would overflow on N ranks but not in one process.

    The largest value of the whole batch's mean is 40000, of at most 65504. With a small scale all
    round to 0 and no variable moves. ordinary: neither, in float32, with the moments of the whole
    batch.
    """
    sizes = (12, 12) if options.get("jit_compile") else (12, 12, 9)
    x = np.random.default_rng(2).normal(size=(sum(sizes), 4)).astype("f")
    y = np.full((len(x), 1), 0.5 if scale < 1 else 0, "f")
    if scale > 1:
        y[[3, 12 + 4, 24 + 5][: len(sizes)]] = np.array([[1.9], [-1.9], [1.4]])[: len(sizes)]
    api.utils.set_random_seed(9)
    layers, optimizers = api.layers, api.optimizers
    half = {} if ordinary else {"dtype": "mixed_float16"}
    zero = {} if ordinary else {"kernel_initializer": "zeros"}

    class Model(api.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            if not own_step:
                return super().train_step(data)
            features, targets = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(features, training=True) - targets) ** 2)
                by_scale = getattr(self.optimizer, "scale_loss", None)
                larger = (by_scale or self.optimizer.get_scaled_loss)(loss)
            gradients = tape.gradient(larger, self.trainable_variables)
            if by_scale is None:
                gradients = self.optimizer.get_unscaled_gradients(gradients)
            clipped(self, gradients)
            return {"mse": loss}

    model = Model([api.Input((4,)), layers.Dense(3, "tanh", **half)])
    if ordinary:
        model.add(layers.BatchNormalization(synchronized=True))
    model.add(layers.Dense(1, **half, **zero))
    model.add(layers.Activation("linear", dtype="float32"))
    kind = getattr(optimizers, "LossScaleOptimizer", None)
    kind = kind or api.mixed_precision.LossScaleOptimizer
    optimizer = kind(optimizers.SGD(0.01), initial_scale=scale, dynamic_growth_steps=1000)
    model.compile(optimizer, "mse", **options)
    model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0)
    now = getattr(optimizer, "dynamic_scale", None)
    now = optimizer.loss_scale if now is None else now
    weights = {f"{n}": encode(array) for n, array in enumerate(model.get_weights())}
    return {**weights, "scale": encode(np.log2(np.asarray(now)))}


def scaled_loop() -> dict[str, Any]:
    """In a custom loop whose step is a function."""
    kernel = tf.Variable(initial((4, 1)), name="kernel")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=2**17)
    optimizer.build([kernel])
    y = np.zeros((24, 1), "f")
    y[[3, 16]] = 1.9
    x = np.tanh(np.random.default_rng(2).normal(size=(24, 4)).astype("f"))
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(12)

    @tf.function
    def step(features: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = tf.cast(features, tf.float16) @ tf.cast(0 * kernel, tf.float16)
            loss = tf.reduce_mean((tf.cast(outputs, tf.float32) - targets) ** 2)
            larger = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(larger, [kernel]), [kernel]))

    for features, targets in tf.mpi.shard(data):
        step(features, targets)
    return {"scale": encode(np.log2(np.asarray(optimizer.dynamic_scale)))}


def initial(shape: tuple[int, ...]) -> Any:
    return tf.constant(np.random.default_rng(11).normal(size=shape), tf.float32)


def loss_of(table: Any, dense: Any, ids: Any, y: Any) -> Any:
    rows = tf.reshape(tf.gather(table, ids), [-1, 2 * WIDTH])
    return tf.reduce_mean((tf.tanh(rows) @ dense - y) ** 2)


def batches() -> Any:
    return tf.mpi.shard(tf.data.Dataset.from_tensor_slices((IDS, Y)).batch(BATCH))


def looped(apply: Any, decorate: Any = None) -> dict[str, Any]:
    """A custom loop, whose steps are functions if `decorate` makes them so."""
    table = tf.Variable(initial((ROWS, WIDTH)), name="table")
    dense = tf.Variable(initial((2 * WIDTH, 1)), name="dense")
    variables = [table, dense]
    apply = apply(variables)

    def step(ids: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(table, dense, ids, y)
        apply(tape.gradient(loss, variables))

    run = decorate(step) if decorate else step
    for _ in range(2):
        for ids, y in batches():
            run(ids, y)
    return {"table": encode(table.numpy()), "dense": encode(dense.numpy())}


def descent(variables: list[Any]) -> Any:
    """With scatters and assignments."""

    def apply(gradients: list[Any]) -> None:
        rows, dense = gradients
        variables[0].scatter_sub(tf.IndexedSlices(RATE * rows.values, rows.indices))
        variables[1].assign(variables[1] - RATE * dense)

    return apply


def clipped_descent(variables: list[Any]) -> Any:
    def apply(gradients: list[Any]) -> None:
        gradients, _ = tf.clip_by_global_norm(gradients, CLIP)
        descent(variables)(gradients)

    return apply


def in_a_function_of_its_own(variables: list[Any]) -> Any:
    """The gradients are arguments of the function that updates: one clipped, and one that both an
    optimizer and an assignment use."""
    optimizer = keras.optimizers.SGD(RATE)
    optimizer.build(variables[1:])

    @tf.function
    def assign(table: Any, dense: Any) -> None:
        optimizer.apply_gradients([(dense, variables[1])])
        variables[0].assign_sub(RATE * table / tf.norm(dense))

    def apply(gradients: list[Any]) -> None:
        table, dense = gradients
        assign(tf.clip_by_norm(tf.convert_to_tensor(table), CLIP), dense)

    return apply


def optimized(make: Any) -> Any:
    def prepare(variables: list[Any]) -> Any:
        optimizer = make()

        def apply(gradients: list[Any]) -> None:
            gradients, _ = tf.clip_by_global_norm(gradients, CLIP)
            optimizer.apply_gradients(zip(gradients, variables))

        return apply

    return prepare


def cases() -> dict[str, Callable[[], dict[str, Any]]]:
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    compiled = functools.partial(tf.function, jit_compile=compiles())
    modes: dict[str, dict[str, Any]] = {
        "graph": {},
        "eager": {"run_eagerly": True},
        "compiled": {"jit_compile": compiles()},
    }
    for name, update in (
        ("by hand", update_by_hand),
        ("momentum", by_momentum),
        ("clipped", clipped),
        ("clipped each", clipped_each),
    ):
        for mode, options in modes.items():
            found[f"keras {name} {mode}"] = functools.partial(fitted, keras, update, **options)
        found[f"tf_keras {name}"] = functools.partial(fitted, tf_keras, update)
    for api in (keras, tf_keras):  # the ranks' parts have unequal sizes
        for mode in ("graph", "eager"):
            case = functools.partial(fitted, api, by_raw_ops, 7, **modes[mode])
            found[f"{api.__name__} raw ops {mode}"] = case
            case = functools.partial(made_by_hand, api, **modes[mode])
            found[f"{api.__name__} made by hand {mode}"] = case
    for mode, decorate in (("eager", None), ("function", tf.function), ("compiled", compiled)):
        found[f"descent {mode}"] = functools.partial(looped, descent, decorate)
        found[f"clipped descent {mode}"] = functools.partial(looped, clipped_descent, decorate)
        adam = optimized(functools.partial(keras.optimizers.Adam, 0.05))
        found[f"Adam {mode}"] = functools.partial(looped, adam, decorate)
    large, small = 2.0**17, 2.0**-22
    for name, scale, more in (
        ("overflow", large, {}),
        ("underflow", small, {}),
        ("scaled", 64.0, {"ordinary": True}),
    ):
        for api in (keras, tf_keras):
            case = functools.partial(scaled, api, scale, **more)
            found[f"{api.__name__} {name}"] = case
            found[f"{api.__name__} {name} step"] = functools.partial(case, own_step=True)
            for mode in ("eager", "compiled"):
                found[f"{api.__name__} {name} {mode}"] = functools.partial(case, **modes[mode])
    found["overflow loop"] = scaled_loop
    legacy = optimized(functools.partial(tf_keras.optimizers.legacy.SGD, 0.5, momentum=0.5))
    found["legacy SGD"] = functools.partial(looped, legacy, tf.function)
    found["function in function"] = functools.partial(looped, in_a_function_of_its_own, tf.function)
    return found


# One case of each kind, and of each way to run.
QUICK = {
    *("keras by hand graph", "keras clipped compiled", "tf_keras clipped each"),
    *("clipped descent function", "Adam eager", "legacy SGD", "function in function"),
    *("overflow loop", "keras raw ops graph", "keras scaled step"),
}


def main() -> None:
    single_threaded_ops()
    # Neither is an average, so the gradients of eager loops are still averaged.
    tf.mpi.barrier()
    tf.mpi.broadcast(1)
    names = QUICK if "quick" in sys.argv[1:] else sys.argv[1:] or cases().keys()
    result({name: case() for name, case in cases().items() if name in names})


main()
