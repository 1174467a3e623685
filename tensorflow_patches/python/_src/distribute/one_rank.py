"""A rank's replacement for the internals of a strategy: one device, and plain variables.

Imported when the first strategy is created, which is after TensorFlow.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, one_device_strategy


def initialize(strategy: Any, replicas: int, resolver: Any, device: str) -> None:
    """Replaces the __init__ of a strategy class.

    replicas: the number of its replicas in one process.
    resolver: its cluster resolver, or None.
    device: the device on which this rank computes.
    """
    extended = OneRank(strategy, replicas, resolver, device)
    distribute_lib.StrategyBase.__init__(strategy, extended)


class OneRank(one_device_strategy.OneDeviceExtended):
    """A StrategyExtended that computes all replicas' parts of a batch as one.

    Outside `run` the script sees the same number of replicas as in one process. Inside there is one
    replica, which computes on its own what several replicas would compute and sum. Datasets stay
    unchanged: Keras's hooks and tf.mpi.shard give each rank its part, as without a strategy.
    """

    _tf_mpi_one_rank = True  # for keras/optimizers.py

    def __init__(self, strategy: Any, replicas: int, resolver: Any, device: str) -> None:
        super().__init__(strategy, device)
        self._replicas = replicas
        self._cluster_resolver = resolver

    @property
    def _num_replicas_in_sync(self) -> int:
        here = distribute_lib.get_replica_context()
        if here is not None and here.strategy is self._container_strategy():
            return 1
        return self._replicas

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        return dataset

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        context = distribute_lib.InputContext(num_replicas_in_sync=self._replicas)
        return _of_all_replicas(dataset_fn(context), self._replicas)

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        if self._replicas > 1:
            raise NotImplementedError(
                "experimental_distribute_values_from_function gives each replica its own value, "
                f"but a rank computes all {self._replicas} replicas' parts as one. Create the "
                "strategy with one device, or set TF_MPI_ENABLE=0"
            )
        return value_fn(distribute_lib.ValueContext())


def _of_all_replicas(dataset: Any, replicas: int) -> Any:
    """Combines the batches for single replicas into one batch per step."""
    if replicas == 1:
        return dataset

    def combine(*parts: Any) -> Any:
        batches = tf.data.Dataset.zip(parts if len(parts) > 1 else parts[0])
        return batches.unbatch().batch(2**40)  # all samples of the window

    return dataset.window(replicas).flat_map(combine)
