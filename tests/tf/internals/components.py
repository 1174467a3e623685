"""Prints the components that Open MPI chose for transfers between ranks (btl)."""

from __future__ import annotations

import ctypes

import tensorflow as tf
from common import result

assert tf.mpi.size() == 2
mpi = ctypes.CDLL("libmpi.so.40")
index, length, handle = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
assert mpi.MPI_T_init_thread(0, ctypes.byref(ctypes.c_int())) == 0
assert mpi.MPI_T_cvar_get_index(b"btl", ctypes.byref(index)) == 0
assert mpi.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(length)) == 0
names = ctypes.create_string_buffer(length.value + 1)
assert mpi.MPI_T_cvar_read(handle, names) == 0
result({"btl": names.value.decode()})
