"""horovod.common.util: the functions that scripts and tests use.

`gpu_available`, `nccl_built` and `gloo_built` are about Horovod's own library, so they are false;
tensorflow.mpi uses GPUs and NCCL without it.
"""

import functools
from typing import Any

from tensorflow.mpi._src.interpose import hooking

_cache = functools.cache  # horovod.tensorflow.util exports it


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    return hooking.numbers(ver) >= hooking.numbers(target)


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    return False


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


def split_list(items: list[Any], parts: int) -> list[list[Any]]:
    """At most `parts` nonempty lists; the first ones may have one item more than the others."""
    each, extra = divmod(len(items), parts)
    ends = [each * n + min(n, extra) for n in range(parts + 1)]
    lists = [items[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]
    return [part for part in lists if part]


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    return ext_base_name == "tensorflow"


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Raises ImportError for a framework other than TensorFlow."""
    if ext_name != "horovod.tensorflow":
        raise ImportError(f"{ext_name} is not in tensorflow.mpi's horovod; see docs/horovod.md")


def nccl_built(verbose: bool = False) -> bool:
    return False


def mpi_built(verbose: bool = False) -> bool:
    return True


def gloo_built(verbose: bool = False) -> bool:
    return False
