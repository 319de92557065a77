# shellcheck shell=bash
# Runs steps and prints a table of them, whatever becomes of each. `steps.sh` declares the steps.

# Of the script: its steps, and the seconds that each may take, since a hang must not hide the rest.
steps=() limit=900

# A line by which cargo, Node's test runner, Python or a script names a failure.
failure='[.]{3} FAILED$|panicked at|^error|^not ok|✖|^Traceback|^[A-Za-z.]*Error:|^FAIL'

declare -A sentence_of=() needs_of=() lane_of=()

# step NAME "NEEDS" SENTENCE: declares a step, whose function is `run_NAME`. It runs after the steps
# that it needs, and only if they have passed.
step() { needs_of[$1]=$2 sentence_of[$1]=$3; }

# beside LANE NAME "NEEDS" SENTENCE: the same for a step that runs beside the others. The steps of
# a lane, `network` or `processor`, run one after another.
beside() { lane_of[$2]=$1 && step "${@:2}"; }

# Runs the steps that the arguments name, or else all of the script.
run_steps() {
    if [ "${1:-}" = --list ]; then
        list
        exit
    fi
    work=$(mktemp -d) planned=()
    trap end_all EXIT
    trap 'exit 130' INT TERM
    [ $# != 0 ] || set -- "${steps[@]}"
    plan "$@"
    # With job control each job has a process group, which can be ended as a whole, and does not
    # ignore SIGINT, which tests send to what they start.
    set -m
    local lane name
    for lane in $(printf '%s\n' "${lane_of[@]}" | sort -u); do
        run_lane "$lane" &
        echo $! >"$work/lane-$lane.pid"
    done
    for name in "${planned[@]}"; do
        [ -z "${lane_of[$name]:-}" ] || continue
        {
            printf '\n=== %s: %s\n' "$name" "${sentence_of[$name]}"
            perform "$name"
            echo "--- $name: $(<"$work/$name.result") s"
        } > >(exec tee "$work/$name.log") 2>&1
    done
    print_lanes
    print_failures
    print_table
}

list() {
    local name
    for name in "${steps[@]}"; do printf '%-16s %s\n' "$name" "${sentence_of[$name]}"; done
}

# Appends steps to `planned`, each after all that it needs.
plan() {
    local name needs
    for name in "$@"; do
        [ -n "${sentence_of[$name]:-}" ] || {
            echo "no step is called $name: --list prints them" >&2
            exit 64
        }
        [[ " ${planned[*]} " != *" $name "* ]] || continue
        read -ra needs <<<"${needs_of[$name]}"
        plan "${needs[@]}"
        planned+=("$name")
    done
}

run_lane() {
    local name
    # Most steps wait for the network, and few for what a core could do instead of theirs.
    [ "$1" = network ] || renice -n 19 "$BASHPID" >/dev/null
    for name in "${planned[@]}"; do
        [ "${lane_of[$name]:-}" != "$1" ] || perform "$name" >"$work/$name.log" 2>&1
    done
}

# Runs one step when all that it needs has ended, and writes its result: a word and its seconds.
perform() {
    local name=$1 need missing=() needs pid status=0 began result
    read -ra needs <<<"${needs_of[$name]}"
    for need in "${needs[@]}"; do
        # A lane has other children than this shell, so files tell of them.
        until [ -e "$work/$need.result" ]; do sleep 0.2; done
        [[ $(<"$work/$need.result") == passed* ]] || missing+=("$need")
    done
    began=$SECONDS
    if [ ${#missing[@]} != 0 ]; then
        echo "$name cannot run without: ${missing[*]}" >&2
        result=not-run
    else
        # A shell of its own: `set -e` means nothing to a function whose status is looked at.
        timeout --kill-after=10 "$limit" bash .ci/steps.sh "$name" </dev/null &
        pid=$!
        echo "$pid" >"$work/$name.pid"
        wait "$pid" || status=$?
        rm "$work/$name.pid"
        kill -- "-$pid" 2>/dev/null # what it has left running
        result=passed
        [ "$status" = 0 ] || result=failed
        [ $((SECONDS - began)) -lt "$limit" ] || result=timed-out
    fi
    echo "$result $((SECONDS - began))" >"$work/$name.new"
    mv "$work/$name.new" "$work/$name.result"
}

# Prints the ends of the logs of what ran beside the steps.
print_lanes() {
    local name lines
    for name in "${planned[@]}"; do
        [ -n "${lane_of[$name]:-}" ] || continue
        until [ -e "$work/$name.result" ]; do sleep 0.2; done
        [[ $(<"$work/$name.result") == passed* ]] && lines=3 || lines=100
        printf '\n=== %s, beside: %s\n' "$name" "${sentence_of[$name]}"
        tail -n "$lines" "$work/$name.log"
    done
}

# Prints again what names the failures of steps, which may stand thousands of lines above.
print_failures() {
    local name
    for name in "${planned[@]}"; do
        [[ -z "${lane_of[$name]:-}" && $(<"$work/$name.result") != passed* ]] || continue
        printf '\n=== %s, failures:\n' "$name"
        grep --text -E -A4 "$failure" "$work/$name.log" | cut -c-400 | tail -n 80
        echo ...
        tail -n 10 "$work/$name.log"
    done
}

# Prints the table and the failed steps, and exits with 1 if there are any.
print_table() {
    local name result seconds failed=()
    printf '\n%8s  %-16s %s\n' seconds step result
    for name in "${planned[@]}"; do
        read -r result seconds <"$work/$name.result"
        [ "$result" = passed ] || failed+=("$name ($result)")
        printf '%8d  %-16s %s%s\n' "$seconds" "$name" "$result" "${lane_of[$name]:+ (beside)}"
    done
    printf '%8d  %s\n\n' "$SECONDS" "in all"
    [ ${#failed[@]} = 0 ] || printf 'failed: %s\n' "${failed[@]}"
    echo "$((${#planned[@]} - ${#failed[@]})) passed, ${#failed[@]} failed"
    [ ${#failed[@]} = 0 ] || exit 1
}

# Ends what still runs: the steps, which have groups of their own, and the lanes.
end_all() {
    local file
    for file in "$work"/lane-*.pid "$work"/*.pid; do
        [ ! -e "$file" ] || kill -- "-$(<"$file")" 2>/dev/null
    done
    rm -rf "$work"
}
