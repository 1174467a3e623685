#!/bin/bash
# PBS:  qsub -v VENV=/path/of/the/environment,SCRIPT=train.py examples/cluster/pbs.sh
#PBS -N train
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l walltime=01:00:00
#PBS -j oe
set -euo pipefail
cd "$PBS_O_WORKDIR"

# The environment with the wheel, in a folder that all nodes can read.
VENV=${VENV:-$HOME/tensorflow-mpi}
# shellcheck source=/dev/null
source "$VENV/bin/activate"
# To use the cluster's MPI instead of the one in the environment:  module load openmpi

# Open MPI passes only the variables named by -x to other nodes. MPICH and Intel MPI pass all of
# them and have no -x:  mpiexec -n "$(wc -l <"$PBS_NODEFILE")" python "$SCRIPT"
mpirun -np "$(wc -l <"$PBS_NODEFILE")" --hostfile "$PBS_NODEFILE" --bind-to core \
    -x PATH -x LD_LIBRARY_PATH python "$SCRIPT"
