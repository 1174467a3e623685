"""Values from the environment: of our parameters, and of variables of other software."""

from __future__ import annotations

import dataclasses
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tensorflow.mpi.config.parameter import DEVICE_TRANSPORTS, ConfigError
from tensorflow.mpi.config.parameters import OLD_NAMES, OLD_PARTS, PARAMETERS

_WIDTH = 98  # characters per line of docs/parameters.md
_RANKS = {
    "same": "Must be the same on all ranks.",
    "rank 0": "Rank 0's value applies.",
    "own": "May differ by rank.",
}


def get(name: str, environ: Mapping[str, str] = os.environ) -> Any:
    """The parsed value of the parameter `name`, or its default; ConfigError if it is invalid."""
    parameter = PARAMETERS[name]
    if name not in environ:
        for old, new in OLD_NAMES.items():
            if new == name and old in environ and old not in OLD_PARTS:
                return dataclasses.replace(parameter, name=old).parse(environ[old])
    return parameter.parse(environ.get(name, parameter.default))


def _old(name: str, environ: Mapping[str, str]) -> Any:
    """The value of one of OLD_PARTS; None if it is not set."""
    return OLD_PARTS[name].parse(environ[name]) if name in environ else None


def transfer_timeout(environ: Mapping[str, str] = os.environ) -> float:
    """The timeout in seconds of a transfer that all ranks have begun."""
    old, limit = _old("TF_MPI_COLLECTIVE_TIMEOUT", environ), 300.0
    found = min(get("TF_MPI_STALL_TIMEOUT", environ) or limit, limit) if old is None else old
    return max(1.0, found)


def deadlock_timeout(environ: Mapping[str, str] = os.environ) -> float:
    """Seconds after which ranks that seem to wait for one another get an error; 0: never."""
    old, stall = _old("TF_MPI_DEADLOCK_TIMEOUT", environ), get("TF_MPI_STALL_TIMEOUT", environ)
    return float(old if old is not None else stall and max(3.0, stall / 600))


def batch_is_per_rank(environ: Mapping[str, str] = os.environ) -> bool:
    return bool(get("TF_MPI_BATCH", environ) != "global")


def rate_scale(environ: Mapping[str, str] = os.environ) -> str:
    """How the learning rate in fit grows with the number of ranks: "none", "linear" or "sqrt".
    Raises ConfigError for "linear" and "sqrt" if the batch size is global."""
    scale: str = get("TF_MPI_BATCH", environ).partition(":")[2]
    scale = scale or _old("TF_MPI_SCALE_LR", environ) or "none"
    if scale != "none" and not batch_is_per_rank(environ):
        raise ConfigError(
            f"TF_MPI_SCALE_LR={scale!r} is not accepted with TF_MPI_BATCH=global, which keeps the "
            f"batch size of one process; accepted: none, or TF_MPI_BATCH=per-rank:{scale}"
        )
    return scale


def gpu_transport(environ: Mapping[str, str] = os.environ) -> str:
    """One of DEVICE_TRANSPORTS; "nccl" if TF_MPI_GPU_TRANSPORT is the path of a library."""
    found: str = get("TF_MPI_GPU_TRANSPORT", environ)
    return found if found in DEVICE_TRANSPORTS else "nccl"


def nccl_library(environ: Mapping[str, str] = os.environ) -> str:
    """The path of the NCCL library that the user has set, or ""."""
    found: str = get("TF_MPI_GPU_TRANSPORT", environ)
    if found in DEVICE_TRANSPORTS:
        found = _old("TF_MPI_NCCL_LIBRARY", environ) or ""
    return found


def renamed(environ: Mapping[str, str] = os.environ) -> list[str]:
    """A line for each old name in the environment."""
    return [
        f"{old} has been renamed to {new}; the next version will not read the old name"
        for old, new in OLD_NAMES.items()
        if old in environ
    ]


def given(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The parameters, old names and SWITCHES that are set in the environment: name -> text."""
    return {
        name: environ[name]
        for name in sorted({*PARAMETERS, *OLD_NAMES, *SWITCHES})
        if name in environ
    }


def check(environ: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError for an invalid value, or for a `TF_MPI_` name that does not exist."""
    for name in environ:
        if name.startswith("TF_MPI_") and name not in PARAMETERS and name not in OLD_NAMES:
            raise ConfigError(
                f"{name} is not a parameter; accepted: {', '.join(sorted(PARAMETERS))}"
            )
    for name in PARAMETERS:
        get(name, environ)
    for name in OLD_PARTS:
        _old(name, environ)
    rate_scale(environ)


# Variables of TensorFlow, Keras and their libraries that change what is computed or averaged. Not
# threads, logs and devices, which may differ. Nor TF2_BEHAVIOR: importing TensorFlow sets it, and
# if a program that has imported TensorFlow starts a launcher, only some nodes inherit it.
SWITCHES = (
    "KERAS_BACKEND", "KERAS_MAX_EPOCHS", "KERAS_MAX_STEPS_PER_EPOCH", "ONEDNN_DEFAULT_FPMATH_MODE",
    "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL",
    "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_EMULATE_FP16",
    "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL",
    "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_SIMULATE_GPU",
    "TF_DETERMINISTIC_OPS", "TF_DETERMINISTIC_ORDER", "TF_ENABLE_ONEDNN_OPTS",
    "TF_ENABLE_ONEDNN_SPMM", "TF_ENABLE_ZENDNN_OPTS", "TF_SET_ONEDNN_FPMATH_MODE",
    "TF_USE_DEEP_CONV2D", "TF_USE_LEGACY_KERAS", "TF_XLA_FLAGS", "XLA_FLAGS",
)  # fmt: skip
_WRITES_ONLY = re.compile(r"--(tf_)?xla_(dump|log|hlo_dump|hlo_profile)\w*(=\S*)?")


def shared_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The settings that must be the same on all ranks: name -> value as text."""
    found = {
        name: parameter.shown(get(name, environ))
        for name, parameter in PARAMETERS.items()
        if parameter.ranks == "same"
    }
    found["TF_MPI_GPU_TRANSPORT"] = gpu_transport(environ)  # a path may differ
    # With TF_MPI_SCALE_LR, the scale is not part of TF_MPI_BATCH's own value.
    if not found["TF_MPI_BATCH"].endswith(rate_scale(environ)) and rate_scale(environ) != "none":
        found["TF_MPI_BATCH"] += f":{rate_scale(environ)}"
    for name in SWITCHES:
        # Ranks may write dumps to different places.
        words = _WRITES_ONLY.sub("", environ.get(name, "")).split()
        found[name] = " ".join(words) or "unset"
    return found


def keras_file(environ: Mapping[str, str] = os.environ) -> str:
    """The file in which Keras looks for its backend and float precision."""
    home = environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    return os.path.join(home, "keras.json")


def grow_gpu_memory() -> bool:
    """Makes TensorFlow allocate GPU memory as needed; returns False if the user has set this.

    Call before TensorFlow creates its devices.
    """
    name = "TF_FORCE_GPU_ALLOW_GROWTH"  # TensorFlow's
    if name in os.environ:
        return False
    os.environ[name] = "true"
    return True


def nccl_shares_gpus(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether NCCL's variable allows several ranks to use one GPU."""
    return environ.get("NCCL_MULTI_RANK_GPU_ENABLE", "0").strip() == "1"


def horovod_dynamic_process_sets(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether Horovod's variable allows a script to add process sets after hvd.init()."""
    return environ.get("HOROVOD_DYNAMIC_PROCESS_SETS", "").strip() not in ("", "0")


def ddl_options(environ: Mapping[str, str] = os.environ) -> str:
    """The options of ddl.init(), from DDL's variable."""
    return environ.get("DDL_OPTIONS", "")


def leave_data_to_script(environ: Any = os.environ, *, files: bool = True) -> None:
    """From here on the script of this process handles the data and, with `files`, the files."""
    environ["TF_MPI_SHARD"] = "off"
    if files:
        environ["TF_MPI_IO"] = "all"


def names_to_pass(
    names: Sequence[str], prefixes: Sequence[str], environ: Mapping[str, str] = os.environ
) -> list[str]:
    """The variables in the environment with these names or prefixes, for a launcher's -x."""
    return sorted(name for name in environ if name in names or name.startswith(tuple(prefixes)))


_SWITCHES_HELP = (
    "Variables that change what is computed must be the same on all ranks, as must the versions of "
    "Python, NumPy, Keras and this wheel, and Keras's file keras.json. The start compares them; if "
    "they differ, it stops and prints all values with their ranks. XLA options that only write "
    "files may differ, and so may variables not listed here: log levels, numbers of threads, paths "
    "of files, TF_CONFIG. On several nodes, Open MPI's mpirun passes only the variables named by "
    "its option -x."
)

_OLD_NAMES_HELP = "Still read in this version; a line on rank 0 names the replacement."


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_on_hyphens=False)


def describe(environ: Mapping[str, str] = os.environ) -> str:
    """All parameters with their help, accepted values and defaults, as Markdown."""
    lines = []
    for p in PARAMETERS.values():
        default = p.default or "unset"
        lines += [f"### `{p.name}`", "", *_wrapped(p.help), ""]
        lines += [*_wrapped(f"Accepted: {p.accepted}. Default: {default}. {_RANKS[p.ranks]}"), ""]
    lines += ["### Names of earlier versions", "", *_wrapped(_OLD_NAMES_HELP), ""]
    lines += [f"- `{old}`: `{new}`" for old, new in OLD_NAMES.items()]
    switches = ", ".join(f"`{name}`" for name in SWITCHES)
    lines += ["", "### Variables of TensorFlow and Keras", "", *_wrapped(_SWITCHES_HELP), ""]
    lines += [*_wrapped(f"Compared: {switches}."), ""]
    return "\n".join(lines)


def cray_takes_gpus(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether Cray's variable makes its MPI accept GPU memory."""
    return environ.get("MPICH_GPU_SUPPORT_ENABLED", "0").strip() == "1"
