"""horovod.runner: `python -m horovod.runner -np 2 python train.py` is horovodrun."""

from horovod import run  # noqa: F401
