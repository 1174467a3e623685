"""The gate: TF_MPI_ENABLE, the launcher, and what a closed gate costs and changes: nothing."""
