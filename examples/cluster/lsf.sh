#!/bin/bash
# LSF:  VENV=/path/of/the/environment SCRIPT=train.py bsub <examples/cluster/lsf.sh
#BSUB -J train
#BSUB -n 8
#BSUB -R "span[ptile=4]"
#BSUB -W 1:00
#BSUB -o train-%J.log
set -euo pipefail

# The environment with the wheel, in a folder that all nodes can read.
VENV=${VENV:-$HOME/tensorflow-mpi}
# shellcheck source=/dev/null
source "$VENV/bin/activate"
# To use the cluster's MPI instead of the one in the environment:  module load openmpi

# One line per slot, with the node's name.
HOSTS=$(mktemp)
trap 'rm -f "$HOSTS"' EXIT
# shellcheck disable=SC2086
printf '%s\n' $LSB_HOSTS >"$HOSTS"
# Open MPI passes only the variables named by -x to other nodes.
mpirun -np "$(wc -l <"$HOSTS")" --hostfile "$HOSTS" --bind-to core \
    -x PATH -x LD_LIBRARY_PATH python "$SCRIPT"
