# Sourced by install.sh: installs the system packages that it needs, with apt-get.
# shellcheck shell=bash disable=SC2154

# need REASON PACKAGE...: adds packages for install_packages to install.
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
    if ! command -v apt-get >/dev/null || ! as_root true 2>/dev/null; then
        die "installing them needs apt-get, and root or sudo" \
            "install the packages above by hand; with apt: sudo apt-get update && sudo $command"
    fi
    step "Installing: $command"
    logged apt-update "check /etc/apt/sources.list and the network" as_root apt-get update
    logged apt-install "read the messages above" as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${packages[@]}"
    packages=() reasons=()
    hash -r
}

# Collects everything that this run needs, so that apt-get runs once. Compile tools are included
# only for tests, or if wheels/ has no wheel for this Python; find_wheel adds them if the wheel
# there is out of date.
plan_packages() {
    if [[ ! -x $venv/bin/python || (-z $wheel && ! -f $BUILDER/stamp) ]]; then
        "$python" -c 'import ensurepip' 2>/dev/null ||
            need "creates virtual environments" "python$(version_of "$python")-venv"
    fi
    local built label=cpu
    [[ $flavour == cpu ]] || label=cuda
    built="$ROOT/wheels/tensorflow-${tensorflow:-2*}+mpi.*.$label-$(wheel_tag)-*.whl"
    if [[ -n $tests ]] || { [[ -z $wheel ]] && ! compgen -G "$built" >/dev/null; }; then
        need_compile_tools
    fi
    if [[ -n $tests ]]; then
        [[ -d /usr/src/googletest ]] || need "the C++ tests use it" googletest
        command -v git >/dev/null || need "the tests of the patch series use it" git
    fi
    if ((system_mpi)) && ! command -v mpirun >/dev/null; then
        need "an MPI for --system-mpi" openmpi-bin
    fi
}
