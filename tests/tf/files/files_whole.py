"""Every rank writes the same to one path, in every way to write, and reads it immediately.

    files_whole.py DIR [nfs | proc]

The ranks start one after another, so that one reads while the next has started to write. Prints
incomplete reads, and the state of files that are not held back. With "nfs" no file without a name
can be created, with "proc" none can get a name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import shutil
import sqlite3
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorflow as tf
from common import result

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
SECONDS = 0.2  # between the starts of the ranks
os.chdir(sys.argv[1])
if "nfs" in sys.argv:
    # No file without a name can be created: EISDIR, as on NFS.
    vars(os)["O_TMPFILE"] = os.O_DIRECTORY
real_link = os.link


def link(source: str, *args: Any, **kwargs: Any) -> None:
    if str(source).startswith("/proc/") and "proc" in sys.argv:
        raise OSError("no /proc")
    real_link(source, *args, **kwargs)


vars(os)["link"] = link
printed: dict[str, Any] = {"broken": [], "kinds": 0}
values = np.random.default_rng(0).normal(size=50_000)
rows = [f"{value:.6f}" for value in values[:2000]]


def slowly(count: int) -> Any:
    """Numbers, with a pause in the middle during which the previous rank reads."""
    for number in range(count):
        if number == count // 2:
            time.sleep(SECONDS / 2)
        yield number


def later(path: str) -> str:
    """Runs when the next rank has started to write."""
    time.sleep(SECONDS * 0.75)
    return path


def text(path: str) -> bool:
    with open(path, "w") as file:
        file.writelines(rows[number] + "\n" for number in slowly(len(rows)))
    return Path(later(path)).read_text().split() == rows


def dropped(path: str) -> bool:
    open(path, "w").write("\n".join(rows[number] for number in slowly(len(rows))))  # noqa: SIM115
    return Path(later(path)).read_text().split() == rows


def pickled(path: str) -> bool:
    with open(path, "wb") as file:
        for number in slowly(10):
            pickle.dump(values[number], file)
    with open(later(path), "rb") as file:
        return [pickle.load(file) for _ in range(10)] == list(values[:10])


def zipped(path: str) -> bool:
    with zipfile.ZipFile(path, "w") as archive:
        for number in slowly(10):
            archive.writestr(f"{number}.txt", rows[number])
    with zipfile.ZipFile(later(path)) as archive:
        return archive.testzip() is None and len(archive.namelist()) == 10


def saved(path: str) -> bool:
    with open(path, "wb") as file:
        for number in slowly(4):
            np.save(file, values[number:])
    with open(later(path), "rb") as file:
        return all(np.array_equal(np.load(file), values[number:]) for number in range(4))


def hdf5(path: str) -> bool:
    with h5py.File(path, "w") as file:
        for number in slowly(10):
            file[str(number)] = values[number:]
        if file.filename != path:
            return False
    with h5py.File(later(path)) as file:
        return all(np.array_equal(file[str(number)], values[number:]) for number in range(10))


def records(path: str) -> bool:
    with tf.io.TFRecordWriter(path) as writer:
        for number in slowly(1000):
            writer.write(rows[number].encode())
    found = [record.numpy().decode() for record in tf.data.TFRecordDataset(later(path))]
    return found == rows[:1000]


def for_long(path: str) -> bool:
    """Open for more than a second. Rank 0 is the last; the others read while it still writes."""
    record = " ".join(rows[:400]).encode()
    time.sleep(0 if RANK else 2 * SECONDS + 0.3)
    with tf.io.TFRecordWriter(path) as writer:
        for _ in range(24):
            writer.write(record)
            time.sleep(0.08 if RANK else 0.1)
    return [one.numpy() for one in tf.data.TFRecordDataset(path)] == [record] * 24


def gfile(path: str) -> bool:
    with tf.io.gfile.GFile(path, "w") as file:
        for number in slowly(len(rows)):
            file.write(rows[number] + "\n")
    with tf.io.gfile.GFile(later(path)) as file:
        return str(file.read()).split() == rows


def emptied(path: str) -> bool:
    """Each rank appends to a file that it has truncated: the last one's remains, as in one
    process."""
    open(path, "w").close()
    with open(path, "a") as file:
        file.write("once\n" * len(list(slowly(2))))
    return Path(later(path)).read_text() in ("", "once\n" * 2)


def at_once(path: str) -> bool:
    """Fast writes, many times, next to an existing file."""
    wrong = 0
    for _ in range(100):
        np.save(path + ".npy", values)
        wrong += not np.array_equal(np.load(path + ".npy"), values)
        shutil.copy(path + ".npy", path)
        wrong += not np.array_equal(np.load(path), values)
        tf.io.gfile.copy(path, path + ".two", overwrite=True)
        wrong += os.path.getsize(path + ".two") != os.path.getsize(path)
        tf.io.write_file(path + ".three", values.tobytes())
        wrong += tf.io.read_file(path + ".three").numpy() != values.tobytes()
    return wrong == 0


def together(name: str, write: Callable[[str], bool]) -> None:
    tf.mpi.barrier()
    time.sleep(SECONDS * RANK)
    printed["kinds"] += 1
    try:
        whole = write(name)
    except Exception as error:  # noqa: BLE001, half a file has many errors
        whole = False
        print(f"{name}: {error!r}", file=sys.stderr)
    if not whole:
        printed["broken"].append(name)


def counted_under_a_lock() -> int:
    """A common lock file: open(path, "w") and flock. Prints when this rank has held it."""
    printed["held"] = []
    if RANK == 0:
        Path("count").write_text("0")
    tf.mpi.barrier()
    for _ in range(20):
        with open("lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            since = time.monotonic()
            count = int(Path("count").read_text())
            time.sleep(0.002)
            Path("count").write_text(str(count + 1))
            printed["held"].append([since, time.monotonic()])
    tf.mpi.barrier()
    return int(Path("count").read_text())


def logs() -> list[str]:
    """Reads of a file that stays open: when opened, when flushed, and a while after a write.

    Another file, locked meanwhile, changes nothing.
    """
    name = f"log{RANK}.txt"
    found = []
    with open(name, "w") as log:
        found.append(Path(name).read_text())
        with open(name + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
        log.write("one ")
        log.flush()
        found.append(Path(name).read_text())
    with open(name, "w") as log:
        log.write("two " * 10_000)
        time.sleep(1.6)
        found.append(Path(name).read_text()[:4])
        log.write("three")
        log.flush()
        found.append(Path(name).read_text()[-5:])
    return found


def kinds_of_files() -> dict[str, Any]:
    """Modes, links and special files stay as they are; errors are those of stock Python."""
    name = f"own{RANK}"
    Path(name).write_text("old")
    os.chmod(name, 0o640)
    os.symlink(name, name + ".symbolic")
    Path(name + ".symbolic").write_text("through")
    os.link(name, name + ".hard")
    Path(name).write_text("both")
    errors = []
    for path, mode in (("missing/file", "w"), (".", "w"), (name, "x"), (name, "wq")):
        try:
            open(path, mode)  # noqa: SIM115
        except (OSError, ValueError) as error:
            errors.append(type(error).__name__)
    with open(os.devnull, "w") as nowhere:
        nowhere.write("gone")
    with open(name + ".both", "w+") as file:
        file.write("written")
        file.seek(0)
        read = [file.name, file.mode, file.read()]
    before = os.stat(name).st_ino
    with open(name, "r+") as file:
        file.write("both")
    in_place = os.stat(name).st_ino == before
    if (child := os.fork()) == 0:
        Path(name + ".child").write_text("of a child")
        os._exit(0)
    os.waitpid(child, 0)
    return {
        "mode": oct(os.stat(name).st_mode & 0o777),
        "through": [Path(name + end).read_text() for end in ("", ".symbolic", ".hard")],
        "symbolic": os.path.islink(name + ".symbolic"),
        "errors": errors,
        "in place": in_place,
        "read": [read[0].replace(name, ""), *read[1:]],
        "child": Path(name + ".child").read_text(),
    }


kinds = (emptied, text, dropped, pickled, zipped, saved, hdf5, records, for_long, gfile, at_once)
for write in kinds:
    together(write.__name__, write)
for turn in range(tf.mpi.size()):  # as ranks whose script numbers its runs
    if turn == RANK:
        taken = len([name for name in os.listdir() if name.startswith("run")])
        Path(f"run{taken or ''}.json").write_text("{}")
    tf.mpi.barrier()
open_databases = []
for database in ("results.db", "read.db"):  # the second is only read: rank 0 made it
    if RANK == 0 or database == "results.db":
        connection = sqlite3.connect(database, timeout=30)  # stays open until the end
        with connection:
            connection.execute("create table if not exists t (value integer)")
            connection.execute("insert into t values (1)")
        open_databases.append(connection)
tf.mpi.barrier()
time.sleep(0.1)  # the resolution of the file system's timestamps
with contextlib.closing(sqlite3.connect("read.db", timeout=30)) as connection:
    tf.mpi.barrier()
    if RANK == 0:
        connection.execute("update t set value = 2")
        connection.commit()
    tf.mpi.barrier()
    printed["inserted"] = len(connection.execute("select * from t").fetchall())
printed["count"] = counted_under_a_lock()
printed["logs"] = logs()
printed["files"] = kinds_of_files()
tf.mpi.barrier()
printed["hidden"] = sorted(name for name in os.listdir() if name.startswith("."))
tf.mpi.barrier()
open_at_exit = open("at_exit", "w")  # noqa: SIM115
open_at_exit.write("written at exit")
result(printed)
