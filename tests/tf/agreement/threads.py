"""Two concurrent sessions in two threads, whose variables have the same names.

    threads.py same | opposite

The argument is the order in which the ranks start the first runs of the sessions.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import tensorflow as tf
from common import result, single_threaded_ops
from models import RANK, LinearGraph

v1 = tf.compat.v1


def main() -> None:
    single_threaded_ops(inter_op=4)
    models = [LinearGraph(10 * n).minimize(v1.train.AdamOptimizer(0.05)) for n in (1, 2)]
    sessions = [v1.Session(graph=model.graph) for model in models]
    for model, session in zip(models, sessions):
        session.run(model.initialize)
    states: dict[str, Any] = {}

    def train(number: int) -> None:
        first = RANK if sys.argv[1] == "opposite" else 0
        time.sleep(0 if number == first else 1)
        states[f"session {number}"] = models[number].run(sessions[number], 100)

    threads = [threading.Thread(target=train, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result(states)


main()
