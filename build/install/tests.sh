# Sourced by install.sh: runs the tests for --test, --test-ci and --test-all.
# shellcheck shell=bash disable=SC2154

# check NAME COMMAND...: runs one part of the tests and records its verdict for the summary.
check() {
    step "Test: $1"
    if shown "test-$1" "${@:2}"; then
        verdicts+=("$1: passed")
    else
        verdicts+=("$1: FAILED (full output: $LOG/test-$1.log)")
        failed=1
    fi
}

# core_tests CONFIG: runs the engine's C++ tests with the flags that .bazelrc has for this
# configuration (plain; tsan, asan: under a sanitizer; full: the tests that take minutes). If all
# pass, prints only googletest's closing lines and Bazel's verdicts. Plain also builds benchmarks/.
core_tests() {
    local options=(--test_output=all) targets=(//tests/core/...) log=$LOG/bazel-$1.log
    [[ $1 != plain ]] || targets+=(//benchmarks/...)
    [[ $1 == plain ]] || options+=("--config=$1")
    [[ $tests != ci || $1 != tsan ]] || options+=(--test_tag_filters=-full,-one_thread,-gpu)
    if (cd "$ROOT" && bazel --batch test "${options[@]}" "${targets[@]}") >"$log" 2>&1; then
        grep -E '^\[  PASSED  \]|^//tests/core|^Executed' "$log"
    else
        tail -n 20 "$log"
        # The failures come last: some CI systems keep only the end of the output.
        grep -E -A 6 ':[0-9]+: (error:|Failure$)|^ERROR|Sanitizer|^FAIL|^\[  FAILED' "$log" |
            head -n 80
        echo "full output: $log"
        return 1
    fi
}

install_test_tools() {
    local stamp version minor no_deps=(-r "$ROOT/tests/requirements-no-deps.txt")
    version=$(installed_version)
    minor=$(grep -o '^[0-9]*\.[0-9]*' <<<"$version")
    # tf_keras before 2.19 cannot be seeded on Python 3.12, where its randint(1, 1e9) is an error.
    [[ $(version_of "$python") != 3.12 || ! $minor =~ ^2\.1[678]$ ]] || minor=2.19
    [[ $minor != 2.22 ]] || minor=2.21 # there is no tf_keras 2.22
    grep -q "^tf_keras==$minor\." "${no_deps[1]}" || no_deps=("tf_keras==$minor.*")
    # TensorFlow 2.20 allows any protobuf, but its write_graph fails with version 7.
    [[ $minor != 2.20 ]] || no_deps+=("protobuf<7")
    stamp="$version $(cat "$ROOT"/{tests,build}/requirements*.txt | sha256sum)"
    [[ -f $venv/test-tools && $(<"$venv/test-tools") == "$stamp" ]] && return
    step "Installing the test tools"
    logged pip-test "check the network and pip's index" "$python" -m pip install \
        -r "$ROOT/tests/requirements.txt" -r "$ROOT/build/requirements.txt"
    logged pip-test-no-deps "check the network and pip's index" "$python" -m pip install \
        --no-deps "${no_deps[@]}"
    printf '%s' "$stamp" >"$venv/test-tools"
}

# googletests CONFIG...: runs core_tests for each configuration in turn, in the background. Writes
# the verdicts to .cache/logs, where collect_googletests reads them.
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

# collect_googletests CONFIG...: adds the verdicts of googletests to the summary.
collect_googletests() {
    local config log verdict
    for config in "$@"; do
        log=$LOG/test-googletest-$config.log
        verdict=$(cat "$LOG/verdict-$config" 2>/dev/null || echo FAILED)
        if [[ $verdict == FAILED ]]; then
            failed=1
            sed 's/^/        /' "$log"
            verdict="FAILED (full output: $log)"
        fi
        verdicts+=("googletest-$config: $verdict")
    done
}

# Runs the tier that `tests` names: quick, ci or all. The C++ tests are built and run in the
# background, because tests with ranks spend much of their time waiting.
run_tests() {
    local verdicts=() failed=0 configs=(plain) parts=(pytest) config part background
    install_test_tools
    export TFMPI_TEST_WHEEL=$wheel
    cd "$ROOT"
    case $tests in
        ci) configs+=(tsan) ;;
        all) configs+=(tsan asan full) ;;
    esac
    step "Test: googletest (${configs[*]}), in the background"
    for config in "${configs[@]}"; do rm -f "$LOG/verdict-$config" "$LOG/bazel-$config.log"; done
    set -m # gives the background job its own process group, so that the trap can kill all of it
    googletests "${configs[@]}" </dev/null &
    background=$!
    set +m
    # shellcheck disable=SC2064
    trap "kill -- -$background 2>/dev/null" EXIT
    # Two files of tests at once. One would leave cores idle: ranks wait for one another, and an
    # import uses one thread.
    local together=("$python" -m pytest --numprocesses 2 --dist loadfile)
    together+=(--no-loadscope-reorder) # tests/conftest.py puts the longest files first
    local quick="not full and not alone"
    if [[ $tests != all ]]; then
        check pytest "${together[@]}" --pool tests -m "$quick"
        wait "$background"
    else
        rm -rf "$CACHE/references" # so that the one-process references are computed again
        check pytest "${together[@]}" tests -m "not alone"
        check pytest-no-extras env TF_MPI_EXTRAS=none "${together[@]}" tests/tf -m "$quick"
        step "Test: googletest, waiting for the rest"
        wait "$background"
        check pytest-alone "$python" -m pytest tests -m alone
        parts+=(pytest-no-extras pytest-alone)
    fi
    trap - EXIT
    collect_googletests "${configs[@]}"
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
