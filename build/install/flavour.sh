# Sourced by install.sh: the wheel for GPUs or that without, and what an environment holds of them.
# shellcheck shell=bash disable=SC2034,SC2154

has_gpu() { [[ $(nvidia-smi -L 2>/dev/null) == GPU* || -e /dev/nvidia0 ]]; }

# The distributions besides ours that own site-packages/tensorflow.
OTHERS=(tensorflow-cpu tf-nightly tf-nightly-cpu tensorflow-rocm tensorflow-intel)

# ask EXPRESSION [NAME]: a fact of a distribution in the environment (default: tensorflow); empty if
# there is none.
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

# pip notes the hash of a wheel that it installed from a file.
installed_sha256() {
    ask "json.loads(found.read_text('direct_url.json'))['archive_info']['hash'].split('=')[1]"
}

# The flavour of our wheel in the environment; empty if it holds none.
held_flavour() {
    case $(installed_version) in
        *+mpi.*.cpu) echo cpu ;;
        *+mpi.*) echo gpu ;;
        *) [[ $(installed_version tensorflow-cpu) != *+mpi.* ]] || echo cpu ;;
    esac
}

# --tensorflow: empty for the one that the project is developed on, else one with a lock.
choose_tensorflow() {
    local locks=$ROOT/third_party/tensorflow own others
    own=$(sed -n 's/^tensorflow-cpu==\([0-9.]*\).*/\1/p' "$locks/cpu.lock")
    [[ -n $tensorflow && $tensorflow != "$own" ]] || { tensorflow='' && return; }
    others=$(cd "$locks" && echo */)
    [[ -f $locks/$tensorflow/cpu.lock ]] ||
        die "no TensorFlow $tensorflow: take one of ${others//\//} $own" "docs/versions.md"
    [[ -z $wheel ]] || die "--tensorflow is for a wheel to build, not for --wheel"
    [[ $flavour != gpu ]] || die "--gpu is for TensorFlow $own only" "leave --gpu out"
    flavour=cpu
}

# What was asked for, else what --wheel is, else what the environment holds, else what the machine is.
choose_flavour() {
    local name=${wheel##*/} is=''
    case $name in
        '') ;;
        tensorflow-*+mpi.*.cpu-*) is=cpu ;;
        tensorflow-*+mpi.*.cuda-*) is=gpu ;;
        *) die "$name is not a wheel of this project: tensorflow-…+mpi.N.cpu-… or ….cuda-…" ;;
    esac
    [[ -z $is || -z $flavour || $flavour == "$is" ]] || die "$name is not for --$flavour" \
        "leave --$flavour out, or pass another --wheel"
    flavour=${flavour:-$is}
    if [[ -z $flavour && -x $venv/bin/python ]]; then
        flavour=$(held_flavour)
    fi
    if [[ -z $flavour ]]; then
        if has_gpu; then flavour=gpu; else flavour=cpu; fi
        [[ $flavour == cpu ]] || step "A GPU is here: the wheel for GPUs (--cpu: that without)"
    elif [[ $flavour == cpu ]] && has_gpu; then
        step "A GPU is here, and the wheel is that without GPUs (--gpu: the other)"
    fi
    choose_cuda
}

# CUDA's libraries come with the wheel's extra and-cuda, where there is something to use them.
choose_cuda() {
    if [[ $flavour == cpu ]]; then
        ((!${cuda:-0})) || die "--with-cuda is for the wheel for GPUs" "add --gpu"
        cuda=0
    elif [[ -z $cuda ]]; then
        if has_gpu; then cuda=1; else cuda=0; fi
        ((cuda)) || step "No GPU here: without CUDA's libraries (--with-cuda installs them)"
    fi
}

disk_space() { if ((cuda)); then echo 9 GB; elif [[ $flavour == gpu ]]; then echo 4 GB; else echo 2 GB; fi; }

# Two distributions with the same files do not go into one environment. What this project itself
# installed under the name tensorflow-cpu, before its wheels were all called tensorflow, goes.
refuse_the_others() {
    local other version
    for other in "${OTHERS[@]}"; do
        version=$(installed_version "$other")
        if [[ $version == *+mpi.* ]]; then
            step "Removing $other $version: the wheel is called tensorflow now"
            logged pip-uninstall "run again" "$python" -m pip uninstall -y "$other"
        elif [[ -n $version ]]; then
            die "$venv holds '$other', whose files this wheel would overwrite" \
                "$python -m pip uninstall $other, or pass another --venv"
        fi
    done
}
