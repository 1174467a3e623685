#!/usr/bin/env bash
# run.sh PYTHON ARGS...: runs PYTHON, which has the GPU wheel of TensorFlow, on simulated GPUs.
#
# With ranks: run.sh PYTHON -c 'pass' once, to build it, then mpirun -np 2 run.sh PYTHON ARGS...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$1
shift
out=$(cd "$here/../../.." && pwd)/.cache/standin
tensorflow=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib") + "/tensorflow")')
mkdir -p "$out"
flock "$out" make -s -C "$here" OUT="$out" TENSORFLOW="$tensorflow" >&2
export LD_LIBRARY_PATH="$out/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$python" "$@"
