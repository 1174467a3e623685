# Sourced by install.sh: --test and --test-all.
# shellcheck shell=bash disable=SC2154

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
    [[ $tests != ci || $1 != tsan ]] || options+=(--test_tag_filters=-full,-one_thread,-gpu)
    if (cd "$ROOT" && bazel --batch test "${options[@]}" //tests/core/...) >"$log" 2>&1; then
        grep -E '^\[  PASSED  \]|^//tests/core|^Executed' "$log"
    else
        tail -n 20 "$log"
        # Last, for what keeps only the end of an output.
        grep -E -A 6 ':[0-9]+: (error:|Failure$)|^ERROR|Sanitizer|^FAIL|^\[  FAILED' "$log" |
            head -n 80
        echo "whole output: $log"
        return 1
    fi
}

install_test_tools() {
    local stamp version minor apart=(-r "$ROOT/tests/requirements-no-deps.txt")
    version=$(installed_version)
    minor=$(grep -o '^[0-9]*\.[0-9]*' <<<"$version")
    # On Python 3.12 tf_keras before 2.19 cannot be seeded: its randint(1, 1e9) is an error there.
    [[ $(version_of "$python") != 3.12 || ! $minor =~ ^2\.1[678]$ ]] || minor=2.19
    grep -q "^tf_keras==$minor\." "${apart[1]}" || apart=("tf_keras==$minor.*")
    # TensorFlow 2.20 takes any protobuf, and its write_graph breaks with 7.
    [[ $minor != 2.20 ]] || apart+=("protobuf<7")
    stamp="$version $(cat "$ROOT"/{tests,build}/requirements*.txt | sha256sum)"
    [[ -f $venv/test-tools && $(<"$venv/test-tools") == "$stamp" ]] && return
    step "Installing the test tools"
    logged pip-test "check the network and pip's index" "$python" -m pip install \
        -r "$ROOT/tests/requirements.txt" -r "$ROOT/build/requirements.txt"
    logged pip-test-no-deps "check the network and pip's index" "$python" -m pip install \
        --no-deps "${apart[@]}"
    printf '%s' "$stamp" >"$venv/test-tools"
}

# googletests CONFIG...: core_tests of each, one after the other; verdicts to .cache/logs, where
# told_googletests finds them.
googletests() {
    set +m
    local config
    for config in "$@"; do
        if core_tests "$config" >"$LOG/test-googletest-$config.log" 2>&1; then
            echo passed >"$LOG/verdict-$config"
        else
            echo FAILED >"$LOG/verdict-$config"
        fi
    done
}

told_googletests() {
    local config log verdict
    for config in "$@"; do
        log=$LOG/test-googletest-$config.log
        verdict=$(cat "$LOG/verdict-$config" 2>/dev/null || echo FAILED)
        if [[ $verdict == FAILED ]]; then
            failed=1
            sed 's/^/        /' "$log"
            verdict="FAILED (whole output: $log)"
        fi
        verdicts+=("googletest-$config: $verdict")
    done
}

# The quick tier is what a change of the averaging would break; the full tier is everything. The C++
# is built and tested while ranks run: those wait for one another, and for what a test is about.
run_tests() {
    local verdicts=() failed=0 configs=(plain) parts=(pytest) config part beside
    install_test_tools
    export TFMPI_TEST_WHEEL=$wheel
    cd "$ROOT"
    case $tests in
        ci) configs+=(tsan) ;;
        all) configs+=(tsan asan full) ;;
    esac
    step "Test: googletest (${configs[*]}), beside the others"
    for config in "${configs[@]}"; do rm -f "$LOG/verdict-$config" "$LOG/bazel-$config.log"; done
    set -m # a process group of its own, to be ended as one
    googletests "${configs[@]}" </dev/null &
    beside=$!
    set +m
    # shellcheck disable=SC2064
    trap "kill -- -$beside 2>/dev/null" EXIT
    # Ranks wait for one another, and imports have one thread: two files of tests at once.
    local together=("$python" -m pytest --numprocesses 2 --dist loadfile)
    together+=(--no-loadscope-reorder) # tests/conftest.py puts the longest files first
    local quick="not full and not alone"
    if [[ $tests != all ]]; then
        check pytest "${together[@]}" --pool tests -m "$quick"
        wait "$beside"
    else
        rm -rf "$CACHE/references" # what one process computes, too, is computed anew
        check pytest "${together[@]}" tests -m "not alone"
        check pytest-no-extras env TF_MPI_EXTRAS=none "${together[@]}" tests/tf -m "$quick"
        step "Test: googletest, the rest"
        wait "$beside"
        check pytest-alone "$python" -m pytest tests -m alone
        parts+=(pytest-no-extras pytest-alone)
    fi
    trap - EXIT
    told_googletests "${configs[@]}"
    step "Results"
    for config in "${configs[@]}"; do
        awk -v config="$config" '/^\[  PASSED  \]/ { tests += $4; files++ }
            END { printf "        googletest %s: %d tests of %d programs passed\n",
                config, tests, files }' "$LOG/bazel-$config.log"
    done
    for part in "${parts[@]}"; do
        printf '        %s: %s\n' "$part" "$(tail -n 1 "$LOG/test-$part.log")"
    done
    printf '        %s\n' "${verdicts[@]}"
    ((!failed)) || die "some tests failed"
}
