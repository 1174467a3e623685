"""The exceptions of tensorflow.mpi: TensorFlow's own, as the kernels raise them."""

from __future__ import annotations

from tensorflow.mpi import _lib


def error_from_code(code: int, message: str) -> Exception:
    """The exception for a code of the library: a tf.errors.OpError subclass."""
    from tensorflow.python.framework import errors

    kinds = {
        _lib.CANCELLED: errors.CancelledError,
        _lib.INVALID_ARGUMENT: errors.InvalidArgumentError,
        _lib.FAILED_PRECONDITION: errors.FailedPreconditionError,
        _lib.DEADLINE_EXCEEDED: errors.DeadlineExceededError,
        _lib.UNAVAILABLE: errors.UnavailableError,
    }
    error: Exception = kinds.get(code, errors.InternalError)(None, None, message)
    return error
