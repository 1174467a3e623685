"""Attributes replaced in Python's library, NumPy and h5py."""

from __future__ import annotations

from tensorflow.mpi._src.files import atomic, logs, names, shared_calls, writes
from tensorflow.mpi._src.interpose.replacement_table import How, Row
from tensorflow.mpi._src.random import host
from tensorflow.mpi._src.replaced.when import DRAWS, FILES

_DRAWS, _NAMES = "tf/random/test_draws.py", "tf/files/test_names.py"
_APPENDS = "tf/files/test_appends.py"
_WHOLE, _SHARED = "tf/files/test_whole_files.py", "tf/files/test_shared_calls.py"

# fmt: off
PYTHON = (
    Row("random:Random.seed", How.WRAP, host.seeding,
        "unseeded generators are the same on all ranks", _DRAWS, DRAWS),
    Row("random:seed", How.WRAP, host.seed_of_instance,
        "the module's function, bound to the original seed", _DRAWS, DRAWS),
    Row("numpy.random.bit_generator:randbits", How.WRAP, host.drawing_bits,
        "entropy of unseeded generators is the same on all ranks", _DRAWS, DRAWS),
    Row("numpy.random:{seed,default_rng}", How.WRAP, host.without_clock,
        "a seed from the clock is equal on all ranks", _DRAWS, DRAWS),
    Row("numpy.random:seed", How.WRAP, host.noted,
        "notes that the script has seeded the state itself", _DRAWS, DRAWS),
    Row("tempfile:_RandomNameSequence.__next__", How.WRAP, names.noting_drawn,
        "a path with a random name differs by rank", _NAMES, FILES),
    Row("os:{rename,replace}", How.WRAP, names.renaming,
        "renaming a link over its own file removes the link", _NAMES, FILES),
    Row("os:{mkdir,rmdir,remove,unlink,rename,replace,link,symlink}", How.WRAP,
        shared_calls.taken_as_done, "the rank that comes first makes each call", _SHARED, FILES),
    Row("pathlib:_NormalAccessor.{mkdir,rmdir,unlink,rename,replace,symlink}", How.WRAP,
        shared_calls.by_accessor, "same as os.mkdir", _SHARED, FILES, "python<3.11"),
    Row("shutil:move", How.WRAP, shared_calls.taken_as_done, "same as os.mkdir", _SHARED, FILES),
    Row("shutil:rmtree", How.WRAP, shared_calls.removing, "same as os.mkdir", _SHARED, FILES),
    Row("logging.handlers:{RotatingFileHandler,TimedRotatingFileHandler}.doRollover", How.WRAP,
        logs.rolling, "the rank that comes first renames the logs", _APPENDS, FILES),
    Row("{builtins,io}:open", How.WRAP, writes.opening,
        "a file that all ranks write appears when complete", _WHOLE, FILES),
    Row("pathlib:_NormalAccessor.open", How.WRAP, writes.opening_by_accessor,
        "same as open", _WHOLE, FILES, "python<3.11"),
    Row("os:{chmod,lstat,stat}", How.WRAP, atomic.seeing,
        "a file that this rank has begun exists", _WHOLE, FILES),
    Row("h5py._hl.files:File.__init__", How.WRAP, writes.making_hdf5_file,
        "same as open; HDF5 locks files that it writes", _WHOLE, FILES),
    Row("h5py._hl.files:File.filename", How.WRAP, writes.naming_hdf5_file,
        "returns the script's path", _WHOLE, FILES),
    Row("h5py._hl.files:File.flush", How.WRAP, writes.flushing, "same as open", _WHOLE, FILES),
    Row("h5py._hl.files:File.close", How.WRAP, writes.closing, "same as open", _WHOLE, FILES),
    Row("{sqlite3,sqlite3.dbapi2}:connect", How.WRAP, writes.connecting,
        "warns if all ranks write to one database", _NAMES, FILES),
    Row("fcntl:{flock,lockf}", How.WRAP, writes.locking,
        "locking a new file switches to the shared one", _WHOLE, FILES),
)
