"""The exceptions of tensorflow.mpi: TensorFlow's own, as the kernels raise them."""

from __future__ import annotations

# What the library's calls return; core/base/status.h.
OK, CANCELLED, INVALID_ARGUMENT, FAILED_PRECONDITION, DEADLINE_EXCEEDED, UNAVAILABLE = range(6)


def error_from_code(code: int, message: str) -> Exception:
    """The exception for a code of the library: a tf.errors.OpError subclass."""
    from tensorflow.python.framework import errors  # late: this is loaded before TensorFlow

    kinds = {
        CANCELLED: errors.CancelledError,
        INVALID_ARGUMENT: errors.InvalidArgumentError,
        FAILED_PRECONDITION: errors.FailedPreconditionError,
        DEADLINE_EXCEEDED: errors.DeadlineExceededError,
        UNAVAILABLE: errors.UnavailableError,
    }
    error: Exception = kinds.get(code, errors.InternalError)(None, None, message)
    return error
