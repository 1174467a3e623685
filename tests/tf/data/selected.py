"""Selection in pipelines of many shapes. Arguments: ranks ("2,3"), which: "quick", "all".

Simulates each number of ranks in this process, one rank after another, because a part needs no
other rank. A sample contains its index and is read from a file, so that reads count the work.
"""

import gc
import os
import resource
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import tensorflow as tf
from common import result
from tensorflow.mpi._src.data import batch_shard, selection, streams
from tensorflow.mpi._src.runtime import group, log
from tensorflow.python.data.ops import cache_op

N, B, EPOCHS, BYTES = 23, 5, 3, 1000
FOLDER = tempfile.mkdtemp()
FILES = [os.path.join(FOLDER, f"{number:02d}") for number in range(N)]
for number, file in enumerate(FILES):
    Path(file).write_bytes(bytes([number]) * BYTES)
Data = tf.data.Dataset


def read(file):
    """An encoded sample: BYTES copies of its index."""
    return tf.cast(tf.io.decode_raw(tf.io.read_file(file), tf.uint8)[0], tf.int64)


def decode(file, *others):
    index = read(file)
    return (tf.stack([tf.cast(index, tf.float32), 1.0]), index % 3, *others)


def numbers(*tensors):
    return tuple(tf.cast(tensor, tf.float32) for tensor in tensors)


def files(count=N):
    return Data.from_tensor_slices(FILES[:count])


def seeded(count=N):
    return files(count).shuffle(count, seed=7)


def long(file):
    index = read(file)
    return tf.fill([index % 4 + 1], index)


def sparse(file):
    return tf.sparse.from_dense(tf.stack([read(file) + 1, 0, 2])), read(file)


def variable():
    state = tf.Variable(1.0)
    files_of = files()
    files_of.kept = state
    return files_of.map(lambda file: state * tf.cast(read(file), tf.float32)).batch(B)


def table(mutable):
    keys, values = tf.range(N, dtype=tf.int64), tf.range(N, dtype=tf.int64) * 2
    if mutable:
        found = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
        found.insert(keys, values)
    else:
        initializer = tf.lookup.KeyValueTensorInitializer(keys, values)
        found = tf.lookup.StaticHashTable(initializer, -1)
    made = files().map(lambda file: found.lookup(read(file))).batch(B)
    made.kept = found
    return made


def windows():
    """As Keras's timeseries_dataset_from_array: before its map, an element is the whole series."""
    series = Data.from_tensors(tf.zeros([2**23]))  # 32 MB
    return Data.zip((series.repeat(), files())).map(lambda s, f: (s[:3], read(f))).batch(B)


def structured(data):
    return {"x": data[0], "y": (data[1], data[1])}


# By name: (the wall before which every rank does all the work, how to create it).
PIPES = {
    "map, batch": ("", lambda: files().map(decode).batch(B)),
    "shuffle, map, batch, prefetch": ("", lambda: seeded().map(decode).batch(B).prefetch(2)),
    "map, shuffle, batch": ("", lambda: files().map(decode).shuffle(9, seed=3).batch(B)),
    "two maps, in parallel": (
        "",
        lambda: seeded().map(decode, 2).prefetch(1).map(numbers, -1).batch(B, True, 2),
    ),
    "divides": ("", lambda: seeded(20).map(decode).batch(10, drop_remainder=True)),
    "fewer samples than ranks": ("", lambda: files(2).map(decode).batch(8)),
    "batches of one": ("", lambda: files(3).map(decode).batch(1)),
    "repeat, take, skip": (
        "",
        lambda: files().map(decode).repeat(2).shuffle(5, seed=1).skip(3).take(31).batch(B),
    ),
    "endless": ("", lambda: files().map(decode).repeat().batch(B)),
    "batches repeated": ("", lambda: files().map(decode).batch(B).skip(1).take(3).repeat(2)),
    "batches shuffled": ("", lambda: seeded().map(decode).batch(B).shuffle(3, seed=2)),
    "part of files": ("", lambda: files().map(decode).shard(2, 1).batch(B)),
    "enumerate": ("", lambda: seeded().map(decode).enumerate().map(lambda k, s: (*s, k)).batch(B)),
    "zip": ("", lambda: Data.zip((files().map(read), seeded().map(decode))).batch(B)),
    "zip of zip": (
        "",
        lambda: Data.zip({"a": Data.zip((files(), files().map(read))), "b": Data.range(N)})
        .map(lambda data: (data["a"][1], data["b"]))
        .batch(B),
    ),
    "structures": (
        "",
        lambda: files().map(decode).map(lambda *data: structured(data)).shuffle(4, seed=1).batch(B),
    ),
    "unknown number": ("", lambda: files().filter(lambda f: f != FILES[3]).map(decode).batch(B)),
    "unknown shapes": ("filter", lambda: files().map(read).filter(lambda i: i < 17).map(
        lambda i: tf.fill([i % 4 + 1], i)).shuffle(4, seed=1).map(tf.reduce_sum).batch(B)),
    "after cache": ("", lambda: files().cache().map(decode).batch(B)),
    "interleave": ("", lambda: Data.range(5).interleave(
        lambda k: Data.from_tensor_slices(FILES).skip(k * 5).take(5), 3).map(decode).batch(B)),
    "options": ("", lambda: files().map(decode).with_options(tf.data.Options()).batch(B)),
    "padded to a shape": (
        "", lambda: files().map(long).padded_batch(B, [6], tf.constant(-1, tf.int64))),
    "sparse": ("", lambda: files().map(sparse).batch(B)),
    "constant table": ("", lambda: table(mutable=False)),
    "windows": ("", windows),
    "rows after batch": ("", lambda: seeded().map(decode).batch(B).map(numbers, 2)),
    "zip of batches": ("", lambda: Data.zip((
        files().map(read).batch(B).prefetch(1),
        {"x": seeded().map(decode).batch(B).map(numbers), "y": Data.range(N).batch(B)},
    )).shuffle(3, seed=2)),
    "rows of one size": ("", lambda: seeded().map(decode).batch(B, True).map(numbers)),
    # Caches: of the same rows in each epoch, of others, and of elements that are not plain tensors
    "cache": ("", lambda: files().map(decode).cache().batch(B)),
    "cached batches": ("", lambda: files().map(decode).batch(B).cache().shuffle(9, seed=2)),
    "cache of a shuffle": (
        "", lambda: seeded().map(decode, 2).map(numbers).cache().shuffle(N, seed=1).batch(B)),
    "cached batches of a shuffle": ("", lambda: seeded().map(decode).batch(B).cache()),
    "cached rows": ("", lambda: seeded().map(decode).batch(B).map(numbers).cache().repeat(2)),
    "cached sparse": ("", lambda: files().map(sparse).cache().batch(B)),
    "cached lengths": (
        "", lambda: files().map(long).cache().repeat(2).padded_batch(
            B, [6], tf.constant(-1, tf.int64))),
    "cache of a cache": ("", lambda: files().filter(lambda f: f != FILES[3]).map(decode).cache()
        .map(numbers).cache().batch(B)),
    "cache in a zip": (
        "", lambda: Data.zip((files().map(decode).prefetch(1).cache(), Data.range(N))).cache().map(
            lambda data, place: (*data, place)).batch(B)),
    "cache in a file": ("", lambda: files().map(decode).cache(f"{FOLDER}/full").batch(B)),
    "rows alone": ("", lambda: Data.range(N).batch(B).map(lambda i: (i, tf.cast(i, tf.float32)))),
    # Walls
    "filter": ("filter", lambda: files().map(decode).filter(lambda x, y: y != 1).batch(B)),
    "cached behind a filter": ("filter", lambda: seeded().map(decode).filter(
        lambda x, y: y != 1).batch(B).cache().repeat(2)),
    "cached sums": ("map", lambda: files().map(sparse).batch(B).map(
        lambda x, y: (x, y + tf.reduce_sum(y))).cache()),
    "new file": ("cache(file)", lambda: files().map(decode).cache(
        tempfile.mktemp(dir=FOLDER)).batch(B)),
    "flat_map": ("flat_map", lambda: files(4).flat_map(
        lambda file: Data.from_tensors(file).map(decode)).batch(3)),
    "sampled": ("sample_from_datasets() or choose_from_datasets()", lambda:
        Data.sample_from_datasets([files().map(decode), seeded().map(decode)], seed=1).batch(B)),
    "scan": ("scan", lambda: files().map(read).scan(
        tf.constant(0, tf.int64), lambda s, i: (s + i, (i, s))).batch(B)),
    "longest": ("padded_batch", lambda: files().map(long).padded_batch(B)),
    "ragged": ("map", lambda: files().map(long).ragged_batch(B).map(lambda r: r.to_tensor())),
    "a stated size": ("map", lambda: files().map(read).batch(B, True).map(
        lambda i: tf.ensure_shape(i, [B]))),
    "mixes": ("map", lambda: files().map(decode).batch(B).map(lambda x, y: (x, tf.roll(y, 1, 0)))),
    "lengths that may differ": ("flat_map", lambda: files().map(read).batch(B).flat_map(
        lambda i: Data.from_tensors((i, -i))).map(numbers).map(numbers)),
    "more rows": ("map", lambda: files().map(read).batch(B).map(lambda i: tf.concat([i, i], 0))),
    "places": ("map", lambda: files().map(read).batch(B).map(lambda i: (i, tf.range(tf.size(i))))),
    "drawn": ("map", lambda: files().map(read).batch(B).map(
        lambda i: (i, tf.random.stateless_uniform(tf.shape(i), [1, 2])))),
    "variable": ("map", variable),
    "written table": ("map", lambda: table(mutable=True)),
}  # fmt: skip
QUICK = {
    "map, shuffle, batch", "two maps, in parallel", "fewer samples than ranks",
    "repeat, take, skip", "zip of zip", "unknown number", "unknown shapes", "rows of one size",
    "cached batches of a shuffle", "cache of a shuffle", "cached behind a filter", "filter",
    "lengths that may differ", "a stated size", "mixes", "variable", "written table", "windows",
    "sampled",
}  # fmt: skip


def plain(batch):
    """The contents of a batch, by row."""
    leaves = tf.nest.flatten(batch)
    dense = [tf.sparse.to_dense(leaf) if hasattr(leaf, "dense_shape") else leaf for leaf in leaves]
    return [[row.tolist() for row in rows] for rows in zip(*(leaf.numpy() for leaf in dense))]


def epochs(dataset):
    return [list(islice(dataset, 2 * N // B)) for _ in range(EPOCHS)]


def bytes_read():
    with open("/proc/self/io") as io:
        return int(io.readline().split()[1])


def peak():
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def resumed(dataset):
    """Whether a restored iterator continues where the saved one was."""
    iterator = iter(dataset)
    next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).write(os.path.join(FOLDER, "iterator"))
    rest = [plain(element.data) for element in islice(iterator, N)]
    iterator = iter(dataset)
    tf.train.Checkpoint(iterator=iterator).read(saved)
    return rest == [plain(element.data) for element in islice(iterator, N)]


def left_over():
    """The number of caches, and of stores for their contents, that exist."""
    gc.collect()
    kinds = (cache_op.CacheDataset, tf.lookup.experimental.MutableHashTable)
    return sum(type(one) in kinds for one in gc.get_objects())


def of_rank(make, rank, size, found):
    """Epochs of a rank's part; the number of samples that it read in the last epoch and in total.

    The last epoch is of a newly created part, as in another fit.
    """
    group.size, group.rank = size, rank
    others = left_over() if rank == 0 and found["left over"] is not None else 0
    dataset = make()
    stream = streams.Stream(dataset, None, None)
    part = selection.shard_batches(stream, batch_shard.maybe_shard)
    found["cardinality"] &= int(part.cardinality()) == int(dataset.cardinality())
    first = bytes_read()
    made = epochs(part)
    part = selection.shard_batches(stream, batch_shard.maybe_shard)
    before = bytes_read()
    last = list(islice(part, 2 * N // B))
    found["read"].append(round((bytes_read() - before) / BYTES, 1))
    found["read in all"].append(round((bytes_read() - first) / BYTES, 1))
    del last
    if rank == size - 1 and found["resumes"] is not None:
        found["resumes"] = resumed(part)
    if rank == 0 and found["left over"] is not None:
        held = left_over() - others
        del dataset, stream, part
        found["left over"] = [held > 0, left_over() - others]
    return made


def compare(name, size):
    """Compares a pipeline on `size` ranks with one process."""
    wall, make = PIPES[name]
    group.size, group.rank = 1, 0
    alone = epochs(make())
    said.clear()
    plans.clear()
    found: dict[str, Any] = {
        "cardinality": True,
        "read": [],
        "read in all": [],
        "resumes": name in ("two maps, in parallel", "cache of a shuffle") or None,
        "left over": name == "cache of a shuffle" or None,
    }
    before = peak()
    ranks = [of_rank(make, rank, size, found) for rank in range(size)]
    found["grown"] = peak() - before
    group.size, group.rank = 1, 0
    found["plan"] = plans[-1]  # rank 0's
    found["wall"], found["expected wall"] = said[0] if said else "", wall
    found["said"] = "\n".join(said)
    found["batches"] = [len(epoch) for epoch in alone]
    found["samples"] = sum(len(plain(batch)) for batch in alone[-1])
    found["equal"] = all(
        [len(epoch) for epoch in rank] == found["batches"] for rank in ranks
    ) and all(
        [row for rank in ranks if bool(rank[epoch][step].counts)
         for row in plain(rank[epoch][step].data)] == plain(batch)
        and all(
            int(rank[epoch][step].whole.shape[0]) == len(plain(batch)) for rank in ranks
        )
        for epoch, batches in enumerate(alone) for step, batch in enumerate(batches)
    )  # fmt: skip
    return found


said, plans, kept = [], [], (group.size, group.rank, log.once, log.debug)
names = QUICK if sys.argv[2] == "quick" else PIPES
try:
    log.once = lambda line, key=None, **_: said.append(line)
    log.debug = lambda line, **_: plans.append(line)
    sizes = sys.argv[1].split(",")
    result({size: {name: compare(name, int(size)) for name in names} for size in sizes})
finally:
    group.size, group.rank, log.once, log.debug = kept
