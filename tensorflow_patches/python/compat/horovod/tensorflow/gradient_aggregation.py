"""horovod.tensorflow.gradient_aggregation: for graphs."""

from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.horovod import aggregation
from tensorflow.mpi._src.horovod.process_sets import ProcessSet, global_process_set


class LocalGradientAggregationHelper(aggregation.Helper):
    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., Any],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: str,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            process_set,
            scale_local_gradients,
            name or type(self).__name__,
            of_graph=optimizer_type == self._OPTIMIZER_TYPE_LEGACY,
        )
