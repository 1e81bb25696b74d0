# Sourced by scripts/test: runs phases, in the foreground or beside others, and writes down what they take.
# shellcheck shell=bash
#
#   begin_record              begins a record, in build/times; that of the run before is build/times-before
#   phase KEY NAME COMMAND... runs a phase; KEY names its files in the record, see scripts/phases_lib/record.py
#   beside KEY COMMAND...     begins one in the background; phase_beside KEY NAME waits for its end
#   twice COMMAND... -- PATH...  gives the tests that fail a second try
#   recorded                  sets recording: pytest's options that put its tests into the record
#   tell_phases               prints the record; summary and failed are for who ends the run

failed=()
summary=()
record=build/times # what phases leave of themselves, see scripts/phases_lib/record.py
second=build/second-try
SECOND_TRIES=3 # of one run; more are no chance

phases() { PYTHONPATH=scripts "${VENV:+$VENV/bin/}python3" -m phases_lib.cli "$@"; }

# timed KEY COMMAND...: run it in a shell of its own, which writes down what it took; KEY names its files
timed() (
    key=$1 rc=0 begun=$EPOCHSECONDS
    shift
    "$@" || rc=$?
    { echo $((EPOCHSECONDS - begun)); times; } >"$record/$key.took"
    exit "$rc"
)

# phase KEY NAME COMMAND...
phase() { ended "$1" "$2" timed "$1" "${@:3}"; }

# beside KEY COMMAND...: begin a phase in the background
declare -A running=()
beside() {
    timed "$@" >"build/$1.log" 2>&1 &
    running[$1]=$!
}

# phase_beside KEY NAME: the end of a phase in the background
phase_beside() { ended "$1" "$2 (beside others)" end_of "${running[$1]}" "build/$1.log"; }

# ended KEY NAME COMMAND...: take down how the command of a phase ends
ended() {
    local key=$1 name=$2 rc=0
    shift 2
    say "== $name"
    "$@" || rc=$?
    printf '%s\t%s\n' "$key" "$name" >>"$record/phases"
    if [ "$rc" = 0 ]; then
        summary+=("ok      $name")
    else
        summary+=("FAILED  $name (exit code $rc)")
        failed+=("$name")
    fi
}

# twice COMMAND... -- PATH...: it runs the tests below the paths; those that fail are run once more, each alone
twice() {
    local rc=0 test log tests number=0 command=()
    while [ "$1" != -- ]; do
        command+=("$1")
        shift
    done
    "${command[@]}" "${@:2}" || rc=$?
    [ "$rc" = 1 ] || return "$rc"
    mapfile -t tests < <(phases failed "$record" "$key")
    [ ${#tests[@]} -gt 0 ] && [ ${#tests[@]} -le "$SECOND_TRIES" ] || return 1
    mkdir -p "$second"
    for test in "${tests[@]}"; do
        number=$((number + 1))
        log=$second/${test//[^A-Za-z0-9_.-]/-}
        phases log "$record" "$key" "$test" >"$log.first.log"
        say "== once more, alone: $test"
        if ! timed "$key.second-$number" "${command[@]}" -n 0 "$test" >"$log.second.log" 2>&1; then
            cat "$log.second.log" >&2
            return 1
        fi
        echo "$test ($log.first.log, $log.second.log)" >>"$record/second-tries"
    done
}

# end_of PID LOG: wait for what runs in the background, and show what it has said
end_of() {
    local rc=0
    wait "$1" || rc=$?
    cat "$2" >&2
    return "$rc"
}

# What pytest leaves of a phase: the time of each test, and which failed.
recorded() {
    # shellcheck disable=SC2034 # it is its caller's
    recording=(
        --junitxml="$record/$key.xml" -o junit_logging=all -o junit_log_passing_tests=false -o cache_dir="$record/$key.cache"
    )
}

# A new record of phases; that of the run before stays beside it.
begin_record() {
    mkdir -p build
    if [ -e "$record/phases" ]; then
        rm -rf "$record-before"
        mv "$record" "$record-before"
    fi
    rm -rf "$record" "$second"
    mkdir "$record"
    calibrated=$(phases calibrate)
}

tell_phases() {
    phases summary "$record" >&2
    say "a fixed computation: $calibrated s at the begin, $(phases calibrate) s now; load: $(cut -d' ' -f1-3 /proc/loadavg)"
    [ -s "$record/second-tries" ] || return 0
    while read -r line; do say "passed at the second try: $line"; done <"$record/second-tries"
    [ "$(wc -l <"$record/second-tries")" -le "$SECOND_TRIES" ] || failed+=("more than $SECOND_TRIES second tries")
}
