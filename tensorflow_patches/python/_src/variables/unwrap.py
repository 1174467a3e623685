"""The tf.Variable of what scripts and Keras call a variable."""

from __future__ import annotations

from typing import Any


def tf_variable(variable: Any) -> Any:
    """What a Keras 3 variable keeps its value in; tf_keras's, and all else, as it is.

    Not Keras's own `value`, which autocast makes another tensor of, and which draws an initial
    value where there is none yet.
    """
    inner = getattr(variable, "_value", None)
    return variable if inner is None else inner
