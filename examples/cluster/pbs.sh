#!/bin/bash
# PBS:  qsub -v VENV=/path/of/the/environment,SCRIPT=train.py examples/cluster/pbs.sh
#PBS -N train
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l walltime=01:00:00
#PBS -j oe
set -euo pipefail
cd "$PBS_O_WORKDIR"

# The environment with the wheel, in a folder that all nodes see.
VENV=${VENV:-$HOME/tensorflow-mpi}
# shellcheck source=/dev/null
source "$VENV/bin/activate"
# The cluster's MPI in place of the one in the environment:  module load openmpi

# Open MPI passes only what -x names on to other nodes; MPICH and Intel MPI pass everything, and
# have no -x:  mpiexec -n "$(wc -l <"$PBS_NODEFILE")" python "$SCRIPT"
mpirun -np "$(wc -l <"$PBS_NODEFILE")" --hostfile "$PBS_NODEFILE" --bind-to core \
    -x PATH -x LD_LIBRARY_PATH python "$SCRIPT"
