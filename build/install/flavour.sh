# Sourced by install.sh: chooses the GPU or the CPU wheel; finds which one an environment has.
# shellcheck shell=bash disable=SC2034,SC2154

has_gpu() { [[ $(nvidia-smi -L 2>/dev/null) == GPU* || -e /dev/nvidia0 ]]; }

# The distributions besides ours that own site-packages/tensorflow.
OTHERS=(tensorflow-cpu tf-nightly tf-nightly-cpu tensorflow-rocm tensorflow-intel)

# ask EXPRESSION [NAME]: prints a fact about an installed distribution (default: tensorflow), or
# nothing if it is not installed.
ask() {
    "$python" -c "
import importlib.metadata, json
try:
    found = importlib.metadata.distribution('${2:-tensorflow}')
    print($1)
except (LookupError, TypeError, importlib.metadata.PackageNotFoundError):
    pass"
}

installed_version() { ask 'found.version' "$@"; }

# pip records the hash of a wheel that it installed from a file.
installed_sha256() {
    ask "json.loads(found.read_text('direct_url.json'))['archive_info']['hash'].split('=')[1]"
}

# The flavour of our wheel in the environment, or nothing if our wheel is not installed.
held_flavour() {
    case $(installed_version) in
        *+mpi.*.cpu) echo cpu ;;
        *+mpi.*) echo gpu ;;
        *) # the CPU wheel was once called tensorflow-cpu: see refuse_the_others
            [[ $(installed_version tensorflow-cpu) != *+mpi.* ]] || echo cpu ;;
    esac
}

# Checks --tensorflow, which must have a lock file. Sets tensorflow, to '' for the version developed
# on; for another version there is a CPU wheel only.
choose_tensorflow() {
    local locks=$ROOT/third_party/tensorflow own others
    own=$(sed -n 's/^tensorflow-cpu==\([0-9.]*\).*/\1/p' "$locks/cpu.lock")
    [[ -n $tensorflow && $tensorflow != "$own" ]] || { tensorflow='' && return; }
    others=$(cd "$locks" && echo */)
    [[ -f $locks/$tensorflow/cpu.lock ]] ||
        die "cannot build for TensorFlow $tensorflow, only for ${others//\//} $own" \
            "see docs/versions.md"
    [[ -z $wheel ]] || die "--tensorflow chooses what to build, and --wheel builds nothing" \
        "omit one of them"
    [[ $flavour != gpu ]] || die "--gpu works with TensorFlow $own only" "omit --gpu"
    flavour=cpu
}

# Sets flavour: what --gpu or --cpu says, else that of --wheel, else that of the wheel in the
# environment, else gpu on a machine with a GPU and cpu on others.
choose_flavour() {
    local name=${wheel##*/} is=''
    case $name in
        '') ;;
        tensorflow-*+mpi.*.cpu-*) is=cpu ;;
        tensorflow-*+mpi.*.cuda-*) is=gpu ;;
        *) die "$name is not a wheel of this project: tensorflow-…+mpi.N.cpu-… or ….cuda-…" ;;
    esac
    [[ -z $is || -z $flavour || $flavour == "$is" ]] || die "$name does not match --$flavour" \
        "omit --$flavour, or pass another --wheel"
    flavour=${flavour:-$is}
    if [[ -z $flavour && -x $venv/bin/python ]]; then
        flavour=$(held_flavour)
    fi
    if [[ -z $flavour ]]; then
        if has_gpu; then flavour=gpu; else flavour=cpu; fi
        [[ $flavour == cpu ]] || step "Found a GPU: using the GPU wheel (--cpu for the CPU wheel)"
    elif [[ $flavour == cpu ]] && has_gpu; then
        step "Found a GPU, but using the CPU wheel (--gpu for the GPU wheel)"
    fi
    choose_cuda
}

# The wheel's extra and-cuda installs CUDA's libraries; by default only on a machine with a GPU.
choose_cuda() {
    if [[ $flavour == cpu ]]; then
        ((!${cuda:-0})) || die "--with-cuda needs the GPU wheel" "add --gpu"
        cuda=0
    elif [[ -z $cuda ]]; then
        if has_gpu; then cuda=1; else cuda=0; fi
        ((cuda)) || step "Found no GPU: not installing CUDA's libraries (--with-cuda installs them)"
    fi
}

disk_space() { if ((cuda)); then echo 9 GB; elif [[ $flavour == gpu ]]; then echo 4 GB; else echo 3 GB; fi; }

# Refuses an environment that holds another distribution with the same files. Uninstalls a wheel of
# this project that is from the time when its CPU wheel was called tensorflow-cpu.
refuse_the_others() {
    local other version
    for other in "${OTHERS[@]}"; do
        version=$(installed_version "$other")
        if [[ $version == *+mpi.* ]]; then
            step "Removing $other $version: the wheel is now called tensorflow"
            logged pip-uninstall "run again" "$python" -m pip uninstall -y "$other"
        elif [[ -n $version ]]; then
            die "$venv contains '$other', and this wheel would overwrite its files" \
                "run $python -m pip uninstall $other, or pass another --venv"
        fi
    done
}
