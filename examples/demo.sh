#!/usr/bin/env bash
# Trains lenet_v1.py on one process and on 2 ranks and compares the two: ./install.sh --demo
# By hand, in the environment that holds the wheel: bash examples/demo.sh
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=$(dirname "$HERE")/.cache
PYTHON=${PYTHON:-python}
MPIRUN=${MPIRUN:-mpirun}
KERAS_DATA=${KERAS_HOME:-${HOME:-/root}/.keras}/datasets/fashion-mnist
STEPS=${STEPS:-2000}
BATCH=128
LEAST_ACCURACY=0.85
MOST_DIFFERENCE=0.03
DEADLINE=150 # seconds for each of the two runs

say() { printf '        %s\n' "$*"; }

die() {
    printf 'demo: %s\n' "$1" >&2
    exit 1
}

has_data() { [[ -f $1/train-images-idx3-ubyte.gz && -f $1/t10k-labels-idx1-ubyte.gz ]]; }

# The folder with Fashion-MNIST's four files: Debian's package, installed or only unpacked here.
find_data() {
    local place unpacked=$CACHE/fashion-mnist
    for place in "$KERAS_DATA" /usr/share/datasets/fashion-mnist \
        "$unpacked/usr/share/datasets/fashion-mnist"; do
        if has_data "$place"; then
            printf '%s' "$place"
            return
        fi
    done
    mkdir -p "$unpacked" "$CACHE/logs"
    cd "$unpacked"
    if command -v apt-get >/dev/null; then
        say "Fetching the data: Debian's package dataset-fashion-mnist (30 MB), not installed" >&2
        {
            apt-get download dataset-fashion-mnist ||
                { apt-get update && apt-get download dataset-fashion-mnist; }
            dpkg -x dataset-fashion-mnist_*.deb . && rm -f dataset-fashion-mnist_*.deb
        } >"$CACHE/logs/demo-data.log" 2>&1 || true
    fi
    has_data "$place" || die "no Fashion-MNIST: apt-get install dataset-fashion-mnist, or put \
its four .gz files into $KERAS_DATA"
    printf '%s' "$place"
}

# train LOG COMMAND...: one run; its step lines are shown.
train() {
    local log=$CACHE/logs/$1.log
    shift
    timeout --kill-after=10 "$DEADLINE" "$@" 2>"$log.err" </dev/null | tee "$log" |
        sed -nu 's/^\(step\|trained\|test\)/          &/p' && return
    tail -n 20 "$log.err" | sed 's/^/  | /' >&2
    die "failed: $* (whole output: $log, $log.err)"
}

# The distinct "test accuracy A loss L" lines of a run: one, if its ranks hold one model.
result() {
    local lines
    lines=$(grep '^test accuracy' "$CACHE/logs/$1.log" | sort -u)
    [[ -n $lines ]] || die "$1 printed no test accuracy"
    [[ $lines != *$'\n'* ]] || die "the ranks of $1 do not hold the same model: ${lines//$'\n'/ / }"
    printf '%s' "$lines"
}

main() {
    mkdir -p "$CACHE/logs" "$CACHE/keras/datasets"
    local data one two start one_seconds two_seconds
    data=$(find_data)
    ln -sfn "$data" "$CACHE/keras/datasets/fashion-mnist"
    export KERAS_HOME=$CACHE/keras TF_CPP_MIN_LOG_LEVEL=2
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    if (($(nproc) < 2)); then
        export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe # Open MPI 5
        export OMPI_MCA_rmaps_base_oversubscribe=1                  # Open MPI 4
    fi
    local script=("$PYTHON" "$HERE/lenet_v1.py" --steps "$STEPS" --batch-size)

    say "One process, batches of $BATCH: python examples/lenet_v1.py"
    start=$SECONDS
    train demo-one "${script[@]}" "$BATCH"
    one_seconds=$((SECONDS - start))
    say "2 ranks, batches of $((BATCH / 2)) each: mpirun -np 2 python examples/lenet_v1.py"
    start=$SECONDS
    train demo-two "$MPIRUN" -np 2 "${script[@]}" "$((BATCH / 2))"
    two_seconds=$((SECONDS - start))

    one=$(result demo-one)
    two=$(result demo-two)
    say "one process: $one, $one_seconds s"
    say "2 ranks:     $two, $two_seconds s"
    awk -v one="$one" -v two="$two" -v least=$LEAST_ACCURACY -v most=$MOST_DIFFERENCE 'BEGIN {
        split(one, a); split(two, b)
        apart = b[3] > a[3] ? b[3] - a[3] : a[3] - b[3]
        printf "        2 ranks against one process: test accuracy %+.4f, test loss %+.4f\n", \
            b[3] - a[3], b[5] - a[5]
        exit !(a[3] >= least && b[3] >= least && apart <= most)
    }' || die "not what training should give: each accuracy at least $LEAST_ACCURACY, at most \
$MOST_DIFFERENCE apart"
}

main "$@"
