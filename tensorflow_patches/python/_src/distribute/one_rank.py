"""What a rank has in the place of a strategy's insides: one device, and plain variables.

Loaded when the first strategy is made, so after TensorFlow.
"""

from __future__ import annotations

from typing import Any

from tensorflow.python.distribute import distribute_lib, one_device_strategy


def initialize(strategy: Any, replicas: int, resolver: Any, device: str) -> None:
    """In place of the __init__ of a strategy's class.

    replicas: how many it has in one process.
    resolver: of its cluster; None if it has none.
    device: on which this rank computes all of it.
    """
    extended = OneRank(strategy, replicas, resolver, device)
    distribute_lib.StrategyBase.__init__(strategy, extended)


class OneRank(one_device_strategy.OneDeviceExtended):
    """A StrategyExtended that computes all replicas' parts of a batch as one.

    Outside of `run` the script sees as many replicas as in one process; inside there is one, which
    has all that is summed over replicas. Datasets stay what they are: Keras's hooks and
    tf.mpi.shard give each rank its part, as without a strategy.
    """

    _tf_mpi_one_rank = True

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
                "experimental_distribute_values_from_function gives each replica a value of its "
                f"own, and a rank computes all {self._replicas} replicas' parts as one. Name one "
                "device in the strategy, or set TF_MPI_ENABLE=0"
            )
        return value_fn(distribute_lib.ValueContext())


def _of_all_replicas(dataset: Any, replicas: int) -> Any:
    """Of batches for one replica each: those of a step, together."""
    if replicas == 1:
        return dataset
    import tensorflow as tf

    def together(*parts: Any) -> Any:
        batches = tf.data.Dataset.zip(parts if len(parts) > 1 else parts[0])
        return batches.unbatch().batch(2**40)

    return dataset.window(replicas).flat_map(together)
