"""horovod.tensorflow.gradient_aggregation_eager: for eager code and tf.function."""

from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.horovod import aggregation
from tensorflow.mpi._src.horovod.process_sets import ProcessSet, global_process_set


class LocalGradientAggregationHelperEager(aggregation.Helper):
    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., Any],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            process_set,
            scale_local_gradients,
            type(self).__name__,
            of_graph=False,
        )
