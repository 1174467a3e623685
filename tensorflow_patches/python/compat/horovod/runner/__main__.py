"""`python -m horovod.runner` runs horovodrun."""

import sys

from tensorflow.mpi._src.launch import horovodrun

sys.exit(horovodrun.main(sys.argv[1:]))
