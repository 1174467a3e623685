"""compat.v1 optimizers on an embedding: prints variables and slots by case.

Each rank has its part of every batch, which contains duplicate ids. As a plain process it is the
reference on the whole batch. With TEST_UNSYNCHRONISED ranks average nothing, as the control.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, place, result, single_threaded_ops

v1 = tf.compat.v1
STEPS, BATCH, ROWS, WIDTH = 6, 12, 20, 4
RANK, SIZE = place()
RANDOM = np.random.default_rng(3)
IDS = RANDOM.integers(0, 8, size=(STEPS, BATCH))  # the other rows are never used
Y = RANDOM.normal(size=(STEPS, BATCH)).astype("f")
TRAIN: Any = v1.train
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "GradientDescent": lambda: TRAIN.GradientDescentOptimizer(0.5),
    "Momentum": lambda: TRAIN.MomentumOptimizer(0.1, 0.9),
    "Nesterov": lambda: TRAIN.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "Adagrad": lambda: TRAIN.AdagradOptimizer(0.1),
    "AdagradDA": lambda: TRAIN.AdagradDAOptimizer(0.1, TRAIN.get_or_create_global_step()),
    "Adam": lambda: TRAIN.AdamOptimizer(0.05),
    "RMSProp": lambda: TRAIN.RMSPropOptimizer(0.05, momentum=0.5),
    "CenteredRMSProp": lambda: TRAIN.RMSPropOptimizer(0.05, centered=True),
    "Ftrl": lambda: TRAIN.FtrlOptimizer(0.1, l1_regularization_strength=0.001),
    "Adadelta": lambda: TRAIN.AdadeltaOptimizer(1.0, epsilon=1e-3),
    "ProximalGradientDescent": lambda: TRAIN.ProximalGradientDescentOptimizer(0.1, 0.001),
    "ProximalAdagrad": lambda: TRAIN.ProximalAdagradOptimizer(0.1, 0.1, 0.001),
}


def part(step: int, alike: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """This process's samples; all of them if the script feeds all ranks the same."""
    if alike:
        return IDS[step], Y[step]
    own = slice(RANK * BATCH // SIZE, (RANK + 1) * BATCH // SIZE)
    return IDS[step][own], Y[step][own]


def initial(shape: tuple[int, ...]) -> np.ndarray:
    """The same on all ranks; eager variables are otherwise synchronized after the first tape."""
    return np.random.default_rng(11).normal(size=shape).astype("f")


def loss_of(variables: list[Any], ids: Any, y: Any) -> Any:
    table, dense = variables
    rows = tf.nn.embedding_lookup(table, ids)
    return tf.reduce_mean((tf.tanh(rows) @ dense - y[:, None]) ** 2)


def in_session(
    make: Any,
    resource: bool,
    from_gradients: bool = False,
    clip: float = 0,
    alike: bool = False,
) -> dict[str, Any]:
    """`from_gradients`: bypasses compute_gradients, so that apply_gradients or the kernels average.
    `clip`: by the global norm of the rows before they are merged, including duplicates."""
    with tf.Graph().as_default(), v1.Session() as session:
        shapes = {"table": (ROWS, WIDTH), "dense": (WIDTH, 1)}
        variables = [
            v1.get_variable(name, initializer=initial(shape), use_resource=resource)
            for name, shape in shapes.items()
        ]
        ids, y = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None])
        optimizer, loss = make(), loss_of(variables, ids, y)
        step = TRAIN.get_or_create_global_step()
        if clip and not from_gradients:
            gradients, _ = zip(*optimizer.compute_gradients(loss, variables))
            gradients, _ = tf.clip_by_global_norm(gradients, clip)
            train = optimizer.apply_gradients(zip(gradients, variables), global_step=step)
        elif from_gradients:
            gradients = tf.gradients(loss, variables, gate_gradients=True)
            assert isinstance(gradients[0], tf.IndexedSlices)
            if clip:
                gradients, _ = tf.clip_by_global_norm(gradients, clip)
            train = optimizer.apply_gradients(zip(gradients, variables), global_step=step)
        else:
            train = optimizer.minimize(loss, global_step=step)
        session.run(v1.global_variables_initializer())
        for i in range(STEPS):
            session.run(train, dict(zip((ids, y), part(i, alike))))
        values: dict[str, Any] = session.run({v.op.name: v for v in v1.global_variables()})
        return values


def in_eager(make: Any, decorate: Any = None) -> dict[str, Any]:
    """In eager code; in functions if `decorate` makes one."""
    variables = [
        tf.Variable(initial(shape), name=name)
        for name, shape in {"table": (ROWS, WIDTH), "dense": (WIDTH, 1)}.items()
    ]
    optimizer = make()

    def step(ids: Any, y: Any) -> None:
        optimizer.minimize(lambda: loss_of(variables, ids, y), var_list=variables)

    run = decorate(step) if decorate else step
    for i in range(STEPS):
        run(*map(tf.constant, part(i)))
    slots = {f"slot {n}": v.numpy() for n, v in enumerate(optimizer.variables())}
    return {**{v.name: v.numpy() for v in variables}, **slots}


def cases() -> dict[str, Callable[[], dict[str, Any]]]:
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, make in OPTIMIZERS.items():
        found[f"{name} ref"] = functools.partial(in_session, make, False)
        found[f"{name} resource gradients"] = functools.partial(in_session, make, True, True)
        if name in ("GradientDescent", "Momentum", "Adam"):
            found[f"{name} ref gradients"] = functools.partial(in_session, make, False, True)
            found[f"{name} function"] = functools.partial(in_eager, make, tf.function)
            found[f"{name} eager"] = functools.partial(in_eager, make)
            for kind in ("ref", "resource"):
                clipped = functools.partial(in_session, make, kind == "resource", clip=0.2)
                found[f"{name} {kind} clipped"] = clipped
                found[f"{name} {kind} clipped, fed alike"] = functools.partial(clipped, alike=True)
                found[f"{name} {kind} gradients clipped"] = functools.partial(
                    clipped, from_gradients=True
                )
    return found


def main() -> None:
    single_threaded_ops(inter_op=2)
    result(
        {
            name: {key: encode(value) for key, value in case().items()}
            for name, case in cases().items()
        }
    )


main()
