"""Finds the tf.Variable inside a Keras variable."""

from __future__ import annotations

from typing import Any

import numpy as np


def tf_variable(variable: Any) -> Any:
    """The tf.Variable that holds a Keras 3 variable's value; any other object itself.

    Does not use Keras's `value`, which may be an autocast copy, and which initializes a variable
    that has no value yet.
    """
    inner = getattr(variable, "_value", None)
    return variable if inner is None else inner


def value(variable: Any) -> Any:
    """A copy of the value of a tf.Variable or Keras variable."""
    return np.array(tf_variable(variable).numpy())
