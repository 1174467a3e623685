"""Rank 1 is late for a step; rank 0 stops waiting after a second and tries again."""

from __future__ import annotations

import time

import tensorflow as tf
from common import result, single_threaded_ops
from models import RANK, LinearGraph

v1 = tf.compat.v1
LATE_STEP, SLEEP, PATIENCE = 3, 6.0, 1.0


def main() -> None:
    single_threaded_ops(inter_op=2)
    model = LinearGraph(10).minimize(v1.train.MomentumOptimizer(0.05, 0.9))
    error, waited = "", 0.0
    with v1.Session(graph=model.graph) as session:
        session.run(model.initialize)
        for step in range(6):
            if step == LATE_STEP and RANK == 1:
                time.sleep(SLEEP)
            if step == LATE_STEP and RANK == 0:
                start = time.monotonic()
                patience = v1.RunOptions(timeout_in_ms=int(1000 * PATIENCE))
                try:
                    session.run(model.train, model.feed(step), options=patience)
                except tf.errors.OpError as failure:
                    error, waited = type(failure).__name__, time.monotonic() - start
                else:
                    continue  # a plain process has no other ranks
            session.run(model.train, model.feed(step))
        result({"state": model.state(session), "error": error, "waited": waited})


main()
