"""What is replaced in Python's library, in NumPy and in h5py."""

from __future__ import annotations

from tensorflow.mpi._src.files import names, writes
from tensorflow.mpi._src.interpose.rows import How, Row
from tensorflow.mpi._src.random import host
from tensorflow.mpi._src.replaced.when import DRAWS, FILES

_DRAWS, _NAMES = "tf/random/test_draws.py", "tf/files/test_names.py"
_WHOLE = "tf/files/test_whole_files.py"

# fmt: off
PYTHON = (
    Row("random:Random.seed", How.WRAP, host.seeding,
        "what is not seeded is alike on all ranks", _DRAWS, DRAWS),
    Row("random:seed", How.WRAP, host.of_instance,
        "a method that was bound to the former seed", _DRAWS, DRAWS),
    Row("numpy.random.bit_generator:randbits", How.WRAP, host.drawing_bits,
        "entropy of unseeded generators is alike on all ranks", _DRAWS, DRAWS),
    Row("numpy.random:{seed,default_rng}", How.WRAP, host.by_clock,
        "a seed from the clock is alike on all ranks", _DRAWS, DRAWS),
    Row("numpy.random:seed", How.WRAP, host.noted,
        "a state that the script has seeded stays its own", _DRAWS, DRAWS),
    Row("tempfile:_RandomNameSequence.__next__", How.WRAP, names.noting_drawn,
        "a path with such a name differs by rank", _NAMES, FILES),
    Row("{builtins,io}:open", How.WRAP, writes.opening,
        "a file that all ranks write appears when whole", _WHOLE, FILES),
    Row("pathlib:_NormalAccessor.open", How.WRAP, writes.opening_by_accessor,
        "as open", _WHOLE, FILES, "python<3.11"),
    Row("h5py._hl.files:File.__init__", How.WRAP, writes.making_hdf5_file,
        "as open; HDF5 locks what it writes", _WHOLE, FILES),
    Row("h5py._hl.files:File.filename", How.WRAP, writes.naming_hdf5_file,
        "is the script's", _WHOLE, FILES),
    Row("h5py._hl.files:File.flush", How.WRAP, writes.flushing, "as open", _WHOLE, FILES),
    Row("h5py._hl.files:File.close", How.WRAP, writes.closing, "as open", _WHOLE, FILES),
    Row("{sqlite3,sqlite3.dbapi2}:connect", How.WRAP, writes.connecting,
        "a database that all ranks write has a line", _NAMES, FILES),
    Row("fcntl:{flock,lockf}", How.WRAP, writes.locking,
        "who locks what it writes gets the common file", _WHOLE, FILES),
)
