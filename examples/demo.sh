#!/usr/bin/env bash
# Runs fashion_mnist_keras.py on one process and on 2 ranks and compares the results.
# Called by ./install.sh --demo. By hand, in the wheel's environment: bash examples/demo.sh
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=$(dirname "$HERE")/.cache
PYTHON=${PYTHON:-python}
MPIRUN=${MPIRUN:-mpirun}
KERAS_DATA=${KERAS_HOME:-${HOME:-/root}/.keras}/datasets/fashion-mnist
EPOCHS=${EPOCHS:-2}
LEAST_ACCURACY=0.8
DEADLINE=180 # seconds for each of the two runs

say() { printf '        %s\n' "$*"; }

die() {
    printf 'demo: %s\n' "$1" >&2
    exit 1
}

has_data() { [[ -f $1/train-images-idx3-ubyte.gz && -f $1/t10k-labels-idx1-ubyte.gz ]]; }

# Prints the folder with Fashion-MNIST's four files: Keras's, or that of Debian's package, which is
# fetched and unpacked under .cache if it is not installed.
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
        say "Fetching the data from Debian's package dataset-fashion-mnist (30 MB)" >&2
        {
            apt-get download dataset-fashion-mnist ||
                { apt-get update && apt-get download dataset-fashion-mnist; }
            dpkg -x dataset-fashion-mnist_*.deb . && rm -f dataset-fashion-mnist_*.deb
        } >"$CACHE/logs/demo-data.log" 2>&1 || true
    fi
    has_data "$place" || die "no Fashion-MNIST data: apt-get install dataset-fashion-mnist, or put \
its four .gz files into $KERAS_DATA"
    printf '%s' "$place"
}

# train LOG COMMAND...: runs the command with its output in .cache/logs, and prints its step lines.
train() {
    local log=$CACHE/logs/$1.log
    shift
    timeout --kill-after=10 "$DEADLINE" "$@" 2>"$log.err" </dev/null | tee "$log" |
        sed -nu 's/^\(Epoch\|[0-9]*\/[0-9]* - \|trained\|test\)/          &/p' && return
    tail -n 20 "$log.err" | sed 's/^/  | /' >&2
    die "failed: $* (full output: $log, $log.err)"
}

# result RUN START: prints the run's line that begins with START; all ranks must print the same one.
result() {
    local lines
    lines=$(grep "^$2" "$CACHE/logs/$1.log" | sort -u)
    [[ -n $lines ]] || die "$1 printed no line '$2 ...'"
    [[ $lines != *$'\n'* ]] || die "the ranks of $1 have different models: ${lines//$'\n'/ / }"
    printf '%s' "$lines"
}

# seconds RUN: prints the longest "trained in S s" of the run.
seconds() { sed -n 's/^trained in \([0-9.]*\) s$/\1/p' "$CACHE/logs/$1.log" | sort -n | tail -n 1; }

main() {
    mkdir -p "$CACHE/logs" "$CACHE/keras/datasets"
    local data one two
    data=$(find_data)
    ln -sfn "$data" "$CACHE/keras/datasets/fashion-mnist"
    export KERAS_HOME=$CACHE/keras TF_CPP_MIN_LOG_LEVEL=2
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    local bind=(--bind-to core) # for the single process too: a fair base for the speed-up
    if (($(nproc) < 2)); then
        bind=()
        export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe # Open MPI 5
        export OMPI_MCA_rmaps_base_oversubscribe=1                  # Open MPI 4
    fi
    local script=("$PYTHON" "$HERE/fashion_mnist_keras.py" --epochs "$EPOCHS")

    say "One process on one core: mpirun -np 1 python examples/fashion_mnist_keras.py"
    train demo-one "$MPIRUN" -np 1 "${bind[@]}" "${script[@]}"
    say "2 ranks, one core each: mpirun -np 2 python examples/fashion_mnist_keras.py"
    train demo-two "$MPIRUN" -np 2 "${bind[@]}" "${script[@]}"

    one=$(result demo-one "test accuracy")
    two=$(result demo-two "test accuracy")
    say "one process: $one, trained in $(seconds demo-one) s"
    say "2 ranks:     $two, trained in $(seconds demo-two) s"
    awk -v one="$one" -v two="$two" -v least=$LEAST_ACCURACY \
        -v slow="$(seconds demo-one)" -v fast="$(seconds demo-two)" 'BEGIN {
        split(one, a); split(two, b)
        printf "        2 ranks against one process: speed-up %.2f, test loss %s\n", slow / fast, \
            sprintf("%.4g", a[5]) == sprintf("%.4g", b[5]) ? "equal to 4 digits" : "different"
        exit !(a[3] >= least && sprintf("%.4g", a[5]) == sprintf("%.4g", b[5]))
    }' || die "wrong result: expected the same test loss to 4 digits, and an accuracy of at least \
$LEAST_ACCURACY"
}

main "$@"
