"""The exceptions of tensorflow.mpi: TensorFlow's own, as the kernels raise them."""

from __future__ import annotations

from tensorflow.mpi._src.runtime import c_api


def error_from_code(code: int, message: str) -> Exception:
    """The exception for a code of the library: a tf.errors.OpError subclass."""
    from tensorflow.python.framework import errors

    kinds = {
        c_api.CANCELLED: errors.CancelledError,
        c_api.INVALID_ARGUMENT: errors.InvalidArgumentError,
        c_api.FAILED_PRECONDITION: errors.FailedPreconditionError,
        c_api.DEADLINE_EXCEEDED: errors.DeadlineExceededError,
        c_api.UNAVAILABLE: errors.UnavailableError,
    }
    error: Exception = kinds.get(code, errors.InternalError)(None, None, message)
    return error
