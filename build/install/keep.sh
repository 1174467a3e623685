# shellcheck shell=bash disable=SC2154
# Sourced by install.sh: stops pip from replacing the wheel, and makes rank 0 report a replacement.

KEPT=tensorflow-mpi-constraints.txt # in the environment's root
GUARD=tensorflow_mpi_guard.pth      # in site-packages; owned by no package, so it stays there

# The URL of a file, whose path may contain spaces.
url_of() {
    "$python" -c 'import pathlib, sys; print(pathlib.Path(sys.argv[1]).as_uri())' "$1"
}

pips_constraint() { "$python" -m pip config --site get install.constraint 2>/dev/null; }

# From now on pip refuses to install anything that would replace the wheel.
keep_wheel() {
    local url site
    {
        echo "# Keeps pip from replacing TensorFlow with MPI: see INSTALL.txt"
        echo "tensorflow==$(installed_version)"
        printf '%s<0\n' "${OTHERS[@]}"
    } >"$venv/$KEPT"
    url=$(url_of "$venv/$KEPT")
    case $(pips_constraint) in
        "$url") ;;
        '') logged pip-config "run again" "$python" -m pip config --site set install.constraint \
            "$url" ;;
        *) note "pip already uses constraints in $venv: add the lines of $venv/$KEPT to them" ;;
    esac
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cp "$ROOT/build/install/$GUARD" "$site/$GUARD"
}

# Undoes keep_wheel, before install.sh itself replaces or removes the wheel.
let_go() {
    local site
    if [[ $(pips_constraint) == "$(url_of "$venv/$KEPT")" ]]; then
        logged pip-config "run again" "$python" -m pip config --site unset install.constraint
    fi
    rm -f "$venv/$KEPT"
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    rm -f "$site/$GUARD"
}
