"""The exceptions of tensorflow.mpi: TensorFlow's own, as the kernels raise them."""

from __future__ import annotations

# Return codes of the library's calls; see core/base/status.h.
OK, CANCELLED, INVALID_ARGUMENT, FAILED_PRECONDITION, DEADLINE_EXCEEDED, UNAVAILABLE = range(6)


def error_from_code(code: int, message: str) -> Exception:
    """The exception for a return code of the library: a subclass of tf.errors.OpError."""
    from tensorflow.python.framework import errors  # here: this module loads before TensorFlow

    kinds = {
        CANCELLED: errors.CancelledError,
        INVALID_ARGUMENT: errors.InvalidArgumentError,
        FAILED_PRECONDITION: errors.FailedPreconditionError,
        DEADLINE_EXCEEDED: errors.DeadlineExceededError,
        UNAVAILABLE: errors.UnavailableError,
    }
    error: Exception = kinds.get(code, errors.InternalError)(None, None, message)
    return error
