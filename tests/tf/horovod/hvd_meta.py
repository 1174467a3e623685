"""A graph with Horovod's ops: ranks write it with its weights, and one process reads it.

hvd_meta.py write | read FOLDER
"""

from __future__ import annotations

import sys

import horovod.tensorflow as hvd
import tensorflow as tf
from common import result

v1 = tf.compat.v1
v1.disable_eager_execution()
PREFIX = f"{sys.argv[2]}/model"


def write() -> None:
    hvd.init()
    weight = v1.get_variable("weight", initializer=tf.ones([3]) * (hvd.rank() + 2.0))
    hvd.allreduce(weight, name="mean")
    broadcast = hvd.broadcast_global_variables(0)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(broadcast)
        if hvd.rank() == 0:
            v1.train.Saver().save(session, PREFIX)
    result({"ops": sorted({op.type for op in v1.get_default_graph().get_operations()})})


def read() -> None:
    with v1.Session() as session:
        v1.train.import_meta_graph(f"{PREFIX}.meta").restore(session, PREFIX)
        result({"weight": session.run(v1.global_variables()[0]).tolist()})


{"write": write, "read": read}[sys.argv[1]]()
