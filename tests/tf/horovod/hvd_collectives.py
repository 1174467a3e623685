"""hvd's collectives, objects and process sets on ranks with different inputs."""

from __future__ import annotations

import sys
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from checks import check, equal, raises, run_all

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
RANKS = np.arange(SIZE)


def of_each(function):
    """The input of each rank, by rank."""
    return [np.asarray(function(rank)) for rank in range(SIZE)]


def base(rank):
    return np.array([[1.0, 2.0], [3.0, -4.0]], np.float32) * (rank + 1)


@check
def who():
    import os

    assert RANK == int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
    assert SIZE == int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1))
    assert (hvd.local_rank(), hvd.local_size()) == (RANK, SIZE)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous() and hvd.mpi_threads_supported() and hvd.is_initialized()
    assert hvd.mpi_built() and hvd.mpi_enabled()
    for (
        none
    ) in "gloo_built gloo_enabled nccl_built ddl_built ccl_built cuda_built rocm_built".split():
        assert not getattr(hvd, none)()
    equal(
        [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()],
        [RANK, SIZE, RANK, SIZE],
    )
    assert [hvd.check_num_rank_power_of_2(n) for n in (0, 3, 4)] == [False, False, True]
    assert hvd.handle_average_backwards_compatibility(None, False) == hvd.Sum
    equal(hvd.process_set_included_op(), 1)
    equal(hvd.process_set_included_op(99), -2)
    raises(NotImplementedError, lambda: hvd.start_timeline("t.json"), "with TF_MPI_TIMELINE=t.json")
    raises(NotImplementedError, hvd.stop_timeline, "hvd.stop_timeline is not available")
    unknown = "tensorflow.mpi's horovod.tensorflow has no frob; docs/horovod.md lists its functions"
    raises(AttributeError, lambda: hvd.frob, unknown)


@check
def allreduce_ops():
    values = of_each(base)
    for op, fold in (
        (hvd.Sum, np.sum),
        (hvd.Average, np.mean),
        (hvd.Min, np.min),
        (hvd.Max, np.max),
        (hvd.Product, np.prod),
    ):
        equal(hvd.allreduce(base(RANK), op=op), fold(values, axis=0), 1e-6)
    equal(hvd.allreduce(base(RANK)), np.mean(values, axis=0), 1e-6)
    equal(hvd.allreduce(base(RANK), average=False), np.sum(values, axis=0), 1e-6)
    both = "The op parameter supersedes average"
    raises(ValueError, lambda: hvd.allreduce(1.0, average=True, op=hvd.Sum), both)
    raises(ValueError, lambda: hvd.allreduce(1.0, op=77), "op=77 is unknown; accepted: Average")


@check
def allreduce_dtypes_and_scales():
    for dtype in (tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64):
        mine = tf.cast(tf.constant([1, 2, 3]) * (RANK + 1), dtype)
        total = np.array([1, 2, 3]) * (RANKS + 1).sum()
        equal(tf.cast(hvd.allreduce(mine, op=hvd.Sum), tf.float64), total)
        got = hvd.allreduce(mine, op=hvd.Average)
        assert got.dtype == dtype
        exact = total / SIZE
        equal(tf.cast(got, tf.float64), exact if dtype.is_floating else np.trunc(exact), 1e-3)
    equal(
        hvd.allreduce(base(RANK), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        1.5 * np.sum(of_each(base), axis=0),
        1e-6,
    )
    third = hvd.allreduce(tf.ones([2], tf.float64), op=hvd.Sum, postscale_factor=1 / 3)
    equal(third, [SIZE / 3] * 2, 1e-15)
    mine = tf.constant([7, 9]) * (RANK + 1)
    before = sum(np.trunc(np.array([7, 9]) * (rank + 1) * 0.5) for rank in range(SIZE))
    equal(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5), before)


@check
def allreduce_compressed():
    assert hvd.compression.Compression is hvd.Compression  # DeepXDE uses the module
    mine = tf.constant([1.0 / 3, 1.0 / 7]) * (RANK + 1)
    got = hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert got.dtype == tf.float32
    rounded = [
        np.float16(np.array([1.0 / 3, 1.0 / 7], np.float32) * (rank + 1)) for rank in range(SIZE)
    ]
    equal(got, np.float16(np.sum(np.array(rounded, np.float32), axis=0)).astype(np.float32))
    exact = hvd.allreduce(mine, op=hvd.Sum)
    assert SIZE == 1 or not np.array_equal(got, exact)
    equal(
        hvd.allreduce(tf.constant([RANK]), op=hvd.Sum, compression=hvd.Compression.fp16),
        [RANKS.sum()],
    )


@check
def allreduce_sparse():
    slices = tf.IndexedSlices(tf.ones([2, 3]) * (RANK + 1), tf.constant([RANK, RANK + 1]), [9, 3])
    got = hvd.allreduce(slices, op=hvd.Average)
    equal(got.indices, np.concatenate([[rank, rank + 1] for rank in range(SIZE)]))
    equal(got.values[:, 0], np.repeat(RANKS + 1, 2) / SIZE, 1e-6)
    equal(hvd.allreduce(slices, op=hvd.Sum).values[:, 0], np.repeat(RANKS + 1, 2))
    raises(NotImplementedError, lambda: hvd.allreduce(slices, op=hvd.Min), "Only Sum and Average")
    way_out = "please pass sparse_as_dense=True"
    raises(NotImplementedError, lambda: hvd.allreduce(slices, op=hvd.Adasum), way_out)
    scaled = "Pre/postscale_factor are not supported"
    raises(NotImplementedError, lambda: hvd.allreduce(slices, prescale_factor=2.0), scaled)


@check
def adasum():
    def pair(a, b):
        dot = (a * b).sum()
        return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b

    def value(rank):
        return np.array([1.0, rank, 2.0 - rank])

    values = of_each(value)
    if SIZE & (SIZE - 1):
        odd = "Running Adasum with non-power of 2 ranks"
        return raises(NotImplementedError, lambda: hvd.allreduce(value(RANK), op=hvd.Adasum), odd)
    while len(values) > 1:
        values = [pair(a, b) for a, b in zip(values[::2], values[1::2])]
    equal(hvd.allreduce(value(RANK), op=hvd.Adasum), values[0], 1e-12)


@check
def grouped():
    tensors = [base(RANK), np.array([RANK], np.float64)]
    got = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    equal(got[0], np.sum(of_each(base), axis=0), 1e-6)
    equal(got[1], [RANKS.sum()])
    got = hvd.grouped_allgather([tf.constant([RANK]), tf.ones([RANK, 2])])
    equal(got[0], RANKS)
    assert got[1].shape == [RANKS.sum(), 2]
    (part,) = hvd.grouped_reducescatter([np.float32(np.arange(2 * SIZE))], op=hvd.Sum)
    equal(part, SIZE * np.arange(2 * SIZE)[2 * RANK : 2 * RANK + 2])


@check
def allgather_ragged():
    for dtype in (tf.uint8, tf.int64, tf.float16, tf.float32, tf.bool):
        mine = tf.cast(tf.ones([RANK * 2, 3]) * (RANK % 2), dtype)
        got = hvd.allgather(mine)
        equal(
            tf.cast(got, tf.float32)[:, 0],
            np.concatenate([np.full(2 * rank, rank % 2) for rank in range(SIZE)]),
        )


@check
def broadcast():
    for root in range(SIZE):
        equal(hvd.broadcast(base(RANK), root), base(root))
    variables = [tf.Variable(base(RANK)), tf.Variable([RANK])]
    hvd.broadcast_variables(variables, root_rank=SIZE - 1)
    equal(variables[0], base(SIZE - 1))
    equal(variables[1], [SIZE - 1])
    variables = [tf.Variable(base(RANK)), tf.Variable([RANK])]
    equal(hvd.broadcast_(variables, 0)[1], [0])
    equal(variables[0], base(0))
    no_root = f"hvd.broadcast: root_rank={SIZE} is not in"
    raises(tf.errors.InvalidArgumentError, lambda: hvd.broadcast(1.0, SIZE), no_root)
    raises(ValueError, lambda: hvd.broadcast_variables(variables, SIZE), f"root_rank={SIZE} is not")
    eager = "does not support eager execution. Please use `hvd.broadcast_variables("
    raises(RuntimeError, lambda: hvd.broadcast_global_variables(0), eager)
    with tf.Graph().as_default():
        get = tf.compat.v1.get_variable
        kinds = [get(f"v{int(is_new)}", [], use_resource=is_new) for is_new in (True, False)]
        one = "should be of the same kind, resource or reference"
        raises(ValueError, lambda: hvd.broadcast_(kinds, 0), one)


@check
def alltoall():
    splits = [(RANK + place) % 3 for place in range(SIZE)]
    rows = np.arange(sum(splits)) + 100 * RANK
    got, received = hvd.alltoall(tf.constant(rows), splits=splits)
    expected, counts = [], []
    for rank in range(SIZE):
        theirs = [(rank + place) % 3 for place in range(SIZE)]
        begin = sum(theirs[:RANK])
        expected += list(np.arange(begin, begin + theirs[RANK]) + 100 * rank)
        counts.append(theirs[RANK])
    equal(got, expected)
    equal(received, counts)
    equal(
        hvd.alltoall(tf.range(2 * SIZE) + 100 * RANK),
        np.concatenate([[2 * RANK + 100 * r, 2 * RANK + 1 + 100 * r] for r in range(SIZE)]),
    )
    for given, splits, words in (
        (tf.ones([1]), [2] * SIZE, "hvd.alltoall: the sum of the splits exceeds the"),
        (tf.ones([1]), [1] * (SIZE + 1), f"hvd.alltoall got {SIZE + 1} splits for {SIZE} ranks"),
    ) + ((tf.ones([SIZE + 1]), None, "hvd.alltoall: the first dimension is not divisible by"),) * (
        SIZE > 1
    ):
        raises(
            tf.errors.InvalidArgumentError,
            lambda: hvd.alltoall(given, splits=splits),  # noqa: B023
            words,
        )


@check
def reducescatter():
    for op, times in ((hvd.Sum, (RANKS + 1).sum()), (hvd.Average, (RANKS + 1).mean())):
        whole = np.float32(np.arange(2 * SIZE + 1)) * times
        first = 2 * RANK + min(RANK, 1)
        got = hvd.reducescatter(np.float32(np.arange(2 * SIZE + 1)) * (RANK + 1), op=op)
        equal(got, whole[first : first + 2 + (RANK < 1)], 1e-6)
    raises(
        tf.errors.InvalidArgumentError, lambda: hvd.reducescatter(1.0), "hvd.reducescatter needs"
    )
    refused = "hvd.reducescatter supports Average and Sum only"
    raises(NotImplementedError, lambda: hvd.reducescatter(tf.ones([2]), op=hvd.Max), refused)


@check
def gradients():
    x = tf.Variable(tf.ones([2 * SIZE]) * (RANK + 1))
    weight = tf.constant(np.float32(np.arange(2 * SIZE) + RANK))  # the gradient, by rank
    mean = np.arange(2 * SIZE) + RANKS.mean()

    def back(function, upstream):
        with tf.GradientTape() as tape:
            y = function(x)
        return tape.gradient(y, x, upstream)

    for run in (lambda f: f, tf.function):
        equal(
            run(lambda: back(lambda v: hvd.allreduce(v, op=hvd.Sum), weight))(), SIZE * mean, 1e-6
        )
        equal(run(lambda: back(hvd.allreduce, weight))(), mean, 1e-6)
        everyones = tf.constant(np.float32(np.arange(2 * SIZE * SIZE) + RANK))
        whole = np.arange(2 * SIZE * SIZE) + RANKS.mean()
        equal(
            run(lambda up=everyones: back(hvd.allgather, up))(),
            whole[2 * SIZE * RANK : 2 * SIZE * (RANK + 1)],
            1e-6,
        )
        got = run(lambda: back(lambda v: hvd.broadcast(v, SIZE - 1), weight))()
        equal(got, mean if RANK == SIZE - 1 else 0 * mean, 1e-6)
        got = run(
            lambda: back(
                lambda v: hvd.reducescatter(v, op=hvd.Sum), tf.constant([1.0, 2.0]) * (RANK + 1)
            )
        )()
        equal(got, SIZE * np.concatenate([[rank + 1, 2 * rank + 2] for rank in range(SIZE)]), 1e-6)
        got = run(
            lambda: back(hvd.alltoall, tf.constant(np.float32(np.arange(2 * SIZE)) + 100 * RANK))
        )()
        equal(
            got,
            np.concatenate([[2 * RANK + 100 * r, 2 * RANK + 1 + 100 * r] for r in range(SIZE)]),
            1e-6,
        )


@check
def graphs_of_v1():
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("v", initializer=np.array([RANK, 1.0], np.float32))
        reduced = hvd.allreduce(variable, op=hvd.Sum)
        (gradient,) = tf.gradients(reduced, [variable])
        (of_root,) = tf.gradients(hvd.broadcast(variable, SIZE - 1), [variable])
        everything = hvd.allgather(tf.constant([RANK]))
        start = hvd.broadcast_global_variables(0)
        session.run(v1.global_variables_initializer())
        equal(session.run(reduced), [RANKS.sum(), SIZE])
        equal(session.run(gradient), [SIZE, SIZE])
        equal(session.run(of_root), np.full(2, float(RANK == SIZE - 1)))
        equal(session.run(everything), RANKS)
        session.run(start)
        equal(session.run(variable), [0.0, 1.0])
        differ = hvd.allreduce(tf.ones([2 + RANK]))
        if SIZE > 1:
            raises(tf.errors.FailedPreconditionError, lambda: session.run(differ), "disagree")


@check
def what_differs_by_rank():
    if SIZE == 1:
        return
    raises(tf.errors.FailedPreconditionError, lambda: hvd.allreduce(tf.ones([2 + RANK])), "rank")
    dtype = tf.int32 if RANK else tf.float32
    raises(tf.errors.FailedPreconditionError, lambda: hvd.allgather(tf.ones([2], dtype)), "rank")
    raises(tf.errors.FailedPreconditionError, lambda: hvd.broadcast(tf.ones([2]), RANK % 2))


@check
def objects():
    assert hvd.broadcast_object({"rank": RANK, "x": [RANK]}, 0) == {"rank": 0, "x": [0]}
    assert hvd.broadcast_object(f"of {RANK}", SIZE - 1, name="n") == f"of {SIZE - 1}"
    assert hvd.allgather_object("x" * RANK) == ["x" * rank for rank in range(SIZE)]
    assert hvd.broadcast_object_fn(0)(RANK) == 0


@check
def variables_in_a_function():
    first = tf.Variable(base(RANK))

    @tf.function
    def step():
        hvd.broadcast_variables([first], root_rank=SIZE - 1)
        return hvd.allreduce(first, op=hvd.Sum)

    equal(step(), SIZE * base(SIZE - 1), 1e-6)
    equal(first, base(SIZE - 1))


@check
def barrier_and_join():
    last = hvd.join()
    equal(last, hvd.allreduce(last, op=hvd.Max))
    if RANK == SIZE - 1:
        time.sleep(1.0)
    equal(hvd.join(), SIZE - 1)
    begin = time.monotonic()
    if RANK == 0:
        time.sleep(0.3)
    hvd.barrier()
    assert time.monotonic() - begin > 0.2


@check
def process_sets():
    if SIZE < 2:
        return
    fixed = "set HOROVOD_DYNAMIC_PROCESS_SETS=1 or call hvd.init(process_sets='dynamic')"
    raises(ValueError, lambda: hvd.add_process_set([0]), fixed)
    hvd.shutdown()
    raises(ValueError, hvd.rank, "Horovod has not been initialized; use hvd.init()")
    raises(NotImplementedError, lambda: hvd.ProcessSet(object()), "pass the list of its ranks")
    raises(ValueError, lambda: hvd.ProcessSet("ab"), "initialized with a list of process ranks")
    even = hvd.ProcessSet(range(0, SIZE, 2))
    odd = hvd.ProcessSet(range(1, SIZE, 2))
    assert even.size() is None and even.process_set_id is None
    hvd.init(process_sets=[even, odd])
    clone = hvd.ProcessSet(even.ranks)
    hvd.init(process_sets=[clone])  # another one registers nothing
    assert clone.process_set_id == even.process_set_id
    raises(ValueError, lambda: hvd.init(process_sets=[clone, even]), "number 1 is a duplicate")
    hvd.init(process_sets=[even])
    mine = even if RANK % 2 == 0 else odd
    place = mine.ranks.index(RANK)
    assert mine.included() and mine.rank() == place and mine.size() == len(mine.ranks)
    other = odd if mine is even else even
    assert not other.included()
    outside = f"hvd.allreduce: rank {RANK} is not in {other}"
    raises(tf.errors.InvalidArgumentError, lambda: hvd.allreduce(1.0, process_set=other), outside)
    raises(ValueError, other.rank, "Process is not part of provided process set")
    unknown = "Process set does not exist or has not been registered"
    raises(ValueError, lambda: hvd.allreduce(1.0, process_set=hvd.ProcessSet([0])), unknown)
    raises(
        NotImplementedError,
        lambda: hvd.allreduce(1.0, op=hvd.Adasum, process_set=mine),
        "Adasum does not support non-global process sets",
    )
    raises(
        NotImplementedError,
        lambda: hvd.DistributedOptimizer(None, op=hvd.Adasum, process_set=mine),
        "Adasum does not support process sets yet",
    )
    members = np.array(mine.ranks)
    for _ in range(3):
        equal(
            hvd.allreduce(base(RANK), op=hvd.Sum, process_set=mine),
            sum(base(rank) for rank in members),
            1e-6,
        )
        equal(
            hvd.allreduce(-base(RANK), op=hvd.Max, process_set=mine),
            np.max([-base(rank) for rank in members], axis=0),
            1e-6,
        )
        equal(
            hvd.allreduce(base(RANK), process_set=mine),
            np.mean([base(rank) for rank in members], axis=0),
            1e-6,
        )
        equal(hvd.allgather(tf.fill([RANK], RANK), process_set=mine), np.repeat(members, members))
        equal(hvd.broadcast(base(RANK), int(members[-1]), process_set=mine), base(members[-1]))
        assert hvd.allgather_object(RANK, process_set=mine) == list(members)
        with tf.Graph().as_default():  # immediately nonetheless
            assert hvd.allgather_object(RANK, process_set=mine) == list(members)
            last = int(members[-1])
            assert hvd.broadcast_object(RANK, last, process_set=mine) == last
        equal(
            hvd.alltoall(tf.range(len(members)) + 10 * RANK, process_set=mine), 10 * members + place
        )
        equal(hvd.allreduce(float(RANK), op=hvd.Sum), RANKS.sum())  # of all ranks, in between
    if SIZE > 2:
        if even.included():  # while the other ranks do nothing
            equal(hvd.allreduce(1.0, op=hvd.Sum, process_set=even), even.size())

        @tf.function
        def traced():
            part = hvd.allreduce(float(RANK + 1), op=hvd.Sum, process_set=mine)
            return part, hvd.allreduce(1.0, op=hvd.Sum)

        part, whole = traced()
        equal(part, (members + 1).sum())
        equal(whole, SIZE)
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    assert even.process_set_id is None
    new = hvd.add_process_set(list(range(1, SIZE)))
    raises(ValueError, lambda: hvd.add_process_set(list(range(1, SIZE))), "add a duplicate process")
    raises(ValueError, lambda: hvd.add_process_set([0, SIZE]), "ranks must be from 0 to")
    differ = "process sets must be the same on all ranks: rank 0 has"
    raises(ValueError, lambda: hvd.add_process_set([RANK]), differ)
    if new.included():
        equal(hvd.allreduce(float(RANK), op=hvd.Sum, process_set=new), RANKS.sum())
    number = new.process_set_id
    assert hvd.remove_process_set(new) and not hvd.remove_process_set(new)
    again = hvd.add_process_set([0])
    assert again.process_set_id == number
    assert hvd.remove_process_set(again)
    assert not hvd.remove_process_set(hvd.global_process_set)


@check
def the_rest_raises_by_name():
    raises(AttributeError, lambda: hvd.no_such_name, "no_such_name; docs/horovod.md lists")
    group = "Start as many ranks as the script needs, or use process sets"
    raises(NotImplementedError, lambda: hvd.init(comm=object()), group)
    import horovod

    raises(NotImplementedError, lambda: horovod.run(print, np=2), "with `mpirun -np N")
    for name, words in (
        ("torch", "horovod.torch is not available: this horovod"),
        ("mxnet", "horovod.mxnet is not available: this horovod"),
        ("spark", "horovod.spark is not available: this horovod"),
        ("ray", "horovod.ray is not available: this horovod"),
        ("tensorflow.data", "horovod.tensorflow.data, the tf.data service on Horovod's"),
        ("runner.common", "horovod.runner.common belongs to Horovod's launcher"),
    ):
        raises(ImportError, lambda: __import__(f"horovod.{name}"), words)  # noqa: B023


@check
def what_programs_import_by_submodule():
    from horovod.common.util import check_extension, gpu_available, nccl_built, split_list
    from horovod.tensorflow import _allreduce, mpi_ops
    from horovod.tensorflow.compression import Compression, FP16Compressor
    from horovod.tensorflow.functions import allgather_object, broadcast_variables
    from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
    from horovod.tensorflow.util import _cache, _executing_eagerly, _make_subgraph

    assert Compression is hvd.Compression and Compression.fp16 is FP16Compressor
    assert SyncBatchNormalization is hvd.SyncBatchNormalization
    assert broadcast_variables is hvd.broadcast_variables
    assert len(allgather_object(RANK)) == SIZE and len(split_list([1, 2, 3], 2)) == 2
    assert not nccl_built() and not gpu_available("tensorflow") and _executing_eagerly()
    check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")
    raises(
        ImportError,
        lambda: check_extension("horovod.torch", "", __file__),
        "horovod.torch is not in",
    )
    equal(_cache(_make_subgraph)(mpi_ops._allreduce)(tf.ones([2])), [SIZE] * 2)
    equal(_allreduce(tf.ones([2])), [SIZE] * 2)  # the sum


@check
def each_name_is_documented():
    """The table of docs/horovod.md covers every name that a script may use."""
    import importlib
    import re
    import types
    from pathlib import Path

    text = (Path(__file__).parents[3] / "docs/horovod.md").read_text()
    rows = re.findall(r"^\| (.+) \| `\w+`.* \|$", text, re.M)
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    public = set()
    for library in ("horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras"):
        hvd_of_it = importlib.import_module(library)
        for prefix, module in (
            ("", hvd_of_it),
            ("", getattr(hvd_of_it, "callbacks", None)),
            ("elastic.", hvd_of_it.elastic),
        ):
            public |= {
                prefix + name
                for name, value in (vars(module) if module else {}).items()
                if not name.startswith("_")
                and not isinstance(value, types.ModuleType)
                and getattr(value, "__module__", None) != "typing"
            }
    assert len(public) > 70
    assert public <= named, sorted(public - named)


run_all(sys.argv[1:])
