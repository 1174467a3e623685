"""Scripts whose ranks may run differently: each case trains and prints its variables.

    cases.py [CASE ...]

Eager cases create their models first and train afterwards, because the first eager tape of a
process synchronizes all existing variables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from common import encode, result, single_threaded_ops
from models import PARTS, RANK, Linear, LinearGraph, batch, batches, initial, mean_loss
from tensorflow.python.eager import context

v1 = tf.compat.v1
State = dict[str, Any]
CASES: dict[str, Callable[[], State | Callable[[], State]]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


@case
def extra_variable_function() -> State:
    return extra_variable(tf.function, "Variable")()


@case
def extra_variable_eager() -> Callable[[], State]:
    return extra_variable(lambda function: function, "more")


@case
def extra_variable_of_the_same_name_eager() -> Callable[[], State]:
    """Before the first update nothing distinguishes it from the trained variable, so rank 1
    computes its first gradient from its own values. The result is not that of one process, but
    equal on all ranks."""
    return extra_variable(lambda function: function, "Variable")


def extra_variable(wrap: Callable[[Any], Any], name: str) -> Callable[[], State]:
    """Rank 1 has an extra variable of the same shape as the trained one, and later another one."""
    more = [tf.Variable(initial(90, 3, 2), name=name)] if RANK == 1 else []
    model, optimizer = Linear(10), v1.train.MomentumOptimizer(0.05, 0.9)
    step = wrap(lambda data: model.update(optimizer, data))

    def train() -> State:
        for number in range(6):
            if number == 3 and RANK == 1:
                more.append(tf.Variable(initial(91, 3, 2), name=name))
            step(model.data(number))
        return model.state(optimizer)

    return train


@case
def extra_variable_session() -> State:
    model = LinearGraph(15)
    if RANK == 1:
        with model.graph.as_default():
            v1.get_variable("more", initializer=initial(90, 3, 2))
    model.minimize(v1.train.MomentumOptimizer(0.05, 0.9))
    with v1.Session(graph=model.graph) as session:
        session.run(model.initialize)
        state = model.run(session, 6)
    state.pop("more:0", None)
    return state


@case
def partial_batch() -> State:
    """Every third batch of rank 0 is short, so rank 0 retraces and the other rank does not."""
    model, optimizer = Linear(20), v1.train.AdamOptimizer(0.05)
    step = tf.function(lambda data: model.update(optimizer, data))
    for number in range(9):
        data = []
        for rank in PARTS:
            x, y = batch(20, number, rank, rows=3 if rank == 0 and number % 3 == 2 else 8)
            data.append((tf.constant(x), tf.constant(y)))
        step(data)
    return model.state(optimizer)


@case
def alternating_optimizers_function() -> State:
    return alternating_optimizers(tf.function)()


@case
def alternating_optimizers_eager() -> Callable[[], State]:
    return alternating_optimizers(lambda function: function)


def alternating_optimizers(wrap: Callable[[Any], Any]) -> Callable[[], State]:
    model = Linear(30)
    optimizers = [v1.train.MomentumOptimizer(0.05, 0.9), v1.train.AdamOptimizer(0.05)]
    first, second = (
        wrap(lambda data, optimizer=optimizer: model.update(optimizer, data))
        for optimizer in optimizers
    )

    def train() -> State:
        for number in range(8):
            (first if number % 2 else second)(model.data(number))
        return model.state(*optimizers)

    return train


@case
def alternating_optimizers_session() -> State:
    model = LinearGraph(35)
    first = model.minimize(v1.train.MomentumOptimizer(0.05, 0.9)).train
    second = model.minimize(v1.train.AdamOptimizer(0.05)).train
    with v1.Session(graph=model.graph) as session:
        session.run(model.initialize)
        for number in range(8):
            session.run(first if number % 2 else second, model.feed(number))
        return model.state(session)


@case
def two_of_a_kind_in_one_run() -> State:
    """Two gradients of one variable in one Session.run, which must not be mixed up.

    Neither depends on the variable, so the order of the updates affects only the last bit.
    """
    model = LinearGraph(40)
    with model.graph.as_default():
        sums = [tf.reduce_sum(x, axis=0) for x, _ in model.places]
        mean = tf.add_n(sums) / len(sums)
        updates = [
            v1.train.GradientDescentOptimizer(rate, use_locking=True).apply_gradients(
                [(factor * tf.stack([mean, 2 * mean], axis=1), model.w)]
            )
            for rate, factor in ((0.01, 1.0), (0.03, -5.0))
        ]
        model.train = tf.group(*updates)
        model.initialize = v1.global_variables_initializer()
    with v1.Session(graph=model.graph) as session:
        session.run(model.initialize)
        return model.run(session, 5)


@case
def two_models_by_turns() -> State:
    models = [Linear(50), Linear(55)]
    optimizers = [v1.train.MomentumOptimizer(0.05, 0.9) for _ in models]
    steps = [
        tf.function(lambda data, m=model, o=optimizer: m.update(o, data))
        for model, optimizer in zip(models, optimizers)
    ]
    for number, turn in enumerate([0, 1, 1, 0, 1, 0, 0, 0, 1]):
        steps[turn](models[turn].data(number))
    first, second = (m.state(o) for m, o in zip(models, optimizers))
    return {**first, **{f"second {name}": value for name, value in second.items()}}


@case
def two_models_in_sessions_by_turns() -> State:
    """Both graphs use the same names."""
    models = [LinearGraph(60 + n).minimize(v1.train.AdamOptimizer(0.05)) for n in range(2)]
    sessions = [v1.Session(graph=model.graph) for model in models]
    for model, session in zip(models, sessions):
        session.run(model.initialize)
    for number, turn in enumerate([0, 1, 1, 0, 1, 0, 0, 0, 1]):
        sessions[turn].run(models[turn].train, models[turn].feed(number))
    first, second = (model.state(session) for model, session in zip(models, sessions))
    return {**first, **{f"second {name}": value for name, value in second.items()}}


@case
def generator_and_critic() -> State:
    """Like a GAN: two losses on shared parts, two optimizers, two updates in one function."""
    generator, critic = tf.Variable(initial(70, 3, 3)), tf.Variable(initial(71, 3, 1))
    optimizers = [v1.train.AdamOptimizer(0.02), v1.train.RMSPropOptimizer(0.02)]

    @tf.function
    def step(data: list[tuple[Any, Any]]) -> None:
        with tf.GradientTape() as critic_tape, tf.GradientTape() as generator_tape:
            real = [tf.tanh(tf.matmul(x[:4], critic)) for x, _ in data]
            fake = [tf.tanh(tf.matmul(tf.matmul(x[4:], generator), critic)) for x, _ in data]
            parts = [tf.reduce_mean(f) for f in fake]
            critic_loss = tf.add_n(parts + [-tf.reduce_mean(r) for r in real]) / len(data)
            generator_loss = -tf.add_n(parts) / len(data)
        critic_gradient = critic_tape.gradient(critic_loss, critic)
        generator_gradient = generator_tape.gradient(generator_loss, generator)
        optimizers[0].apply_gradients([(critic_gradient, critic)])
        optimizers[1].apply_gradients([(generator_gradient, generator)])

    for number in range(6):
        step([(tf.constant(x), tf.constant(y)) for x, y in batches(70, number)])
    return {"generator": encode(generator.numpy()), "critic": encode(critic.numpy())}


@case
def while_loop() -> State:
    """Five steps in one call of a function."""
    model, slot = Linear(80), tf.Variable(initial(82, 3, 2))
    data = [model.data(number) for number in range(5)]
    xs, ys = (
        [tf.stack([step[part][i] for step in data]) for part in range(len(PARTS))] for i in range(2)
    )

    @tf.function
    def train(xs: list[Any], ys: list[Any]) -> None:
        for number in tf.range(5):
            with tf.GradientTape() as tape:
                now = [(x[number], y[number]) for x, y in zip(xs, ys)]
                loss = mean_loss(model.w, model.b, now)
            gradient, _ = tape.gradient(loss, [model.w, model.b])
            tf.raw_ops.ResourceApplyMomentum(
                var=model.w.handle, accum=slot.handle, lr=0.05, grad=gradient, momentum=0.9
            )

    train(xs, ys)
    train(xs, ys)
    return {"w": encode(model.w.numpy()), "slot": encode(slot.numpy())}


@case
def conditional_update() -> State:
    """An update in a branch of tf.cond that every rank takes in the same steps."""
    model, optimizer = Linear(85), v1.train.GradientDescentOptimizer(0.05)

    @tf.function
    def step(data: list[tuple[Any, Any]], number: Any) -> None:
        if number % 2 == 0:
            model.update(optimizer, data)

    for number in range(6):
        step(model.data(number), tf.constant(number))
    return model.state()


@case
def second_session() -> State:
    """Opened after the first was closed; its variables are initialized again, differently by
    rank."""
    model = LinearGraph(95, use_resource=False).minimize(v1.train.MomentumOptimizer(0.05, 0.9))
    states = []
    for _ in range(2):
        with v1.Session(graph=model.graph) as session:
            session.run(model.initialize)
            states.append(model.run(session, 4))
    return {**states[0], **{f"second {name}": value for name, value in states[1].items()}}


@case
def monitored_session() -> State:
    """Its graph is finalized before the first step."""
    model = LinearGraph(97)
    with model.graph.as_default():
        counter = v1.train.get_or_create_global_step()
        model.minimize(v1.train.AdamOptimizer(0.05), global_step=counter)
        with tf.control_dependencies([model.train]):
            after = counter.read_value()
        hooks = [v1.train.StopAtStepHook(last_step=6)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            number = 0
            while not session.should_stop():
                _, w, b, count = session.run(
                    [model.train, model.w, model.b, after], model.feed(number)
                )
                number += 1
            raw = session._tf_sess()
            assert raw is None or raw.graph.finalized
    return {"steps": encode([number, count])}


@case
def asynchronous_eager() -> Callable[[], State]:
    model, optimizer = Linear(100), v1.train.AdamOptimizer(0.05)

    def train() -> State:
        with context.execution_mode(context.ASYNC):
            for number in range(6):
                model.update(optimizer, model.data(number))
            context.async_wait()
        return model.state(optimizer)

    return train


def main() -> None:
    single_threaded_ops(inter_op=2)
    chosen = sys.argv[1:] or [name for name in CASES if "of_the_same_name" not in name]
    begun = {name: CASES[name]() for name in chosen}
    result({name: train() if callable(train) else train for name, train in begun.items()})


main()
