# shellcheck shell=bash disable=SC2154
# That the wheel stays: pip puts nothing in its place, and ranks say so where something did.

KEPT=tensorflow-mpi-constraints.txt # in an environment
GUARD=tensorflow_mpi_guard.pth      # in its site-packages; no package's, so it outlives the wheel

# Whatever is installed next leaves the wheel as it is, or is refused.
keep_wheel() {
    local uri site
    {
        echo "# pip installs nothing in the place of TensorFlow with MPI: INSTALL.txt"
        echo "tensorflow==$(installed_version)"
        printf '%s<0\n' "${OTHERS[@]}"
    } >"$venv/$KEPT"
    uri=$("$python" -c 'import pathlib, sys; print(pathlib.Path(sys.argv[1]).as_uri())' \
        "$venv/$KEPT")
    case $("$python" -m pip config --site get install.constraint 2>/dev/null) in
        "$uri") ;;
        '') logged pip-config "run again" "$python" -m pip config --site set install.constraint \
            "$uri" ;;
        *) note "pip has constraints of its own in $venv: add those of $venv/$KEPT to them" ;;
    esac
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cp "$ROOT/build/install/$GUARD" "$site/$GUARD"
}

# Before another wheel takes its place.
let_go() {
    local site
    rm -f "$venv/$KEPT"
    "$python" -m pip config --site unset install.constraint >/dev/null 2>&1 || true
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    rm -f "$site/$GUARD"
}
