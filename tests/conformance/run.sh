#!/usr/bin/env bash
# Runs the official MCP conformance suite against a server: all scenarios of a revision but those in left-out.txt.
#
# usage: run.sh URL REVISION [TARGET]      run.sh http://127.0.0.1:8080/mcp 2026-07-28
#
# TARGET says what the server is, where left-out.txt has lines for it. REVISION may be "extension", for the scenarios of
# extensions.
#
# Needs `npm ci` here first. Fails if a scenario fails or warns, does not run, checks nothing, or is missing; and if
# left-out.txt names a scenario that the suite does not have, or a check that passes by now.
set -euo pipefail
url=${1:?usage: run.sh URL REVISION [TARGET]}
revision=${2:?usage: run.sh URL REVISION [TARGET]}
target=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# The number of scenarios of each revision in this exact version of the suite, and how many of them must run.
# Those of extensions are of no revision.
of=(--spec-version "$revision") tag=
case $revision in
    2025-11-25) all=33 least=13 ;;
    2026-07-28) all=40 least=15 ;;
    extension) all=13 least=3 of=() tag='\[extension\]' ;;
    *) echo "unknown revision: $revision" >&2; exit 64 ;;
esac

node() { "$here/node_modules/.bin/node" "$@"; }
suite() { node "$here/node_modules/@modelcontextprotocol/conformance/dist/index.js" "$@"; }

suite list --server "${of[@]}" | sed -n "s/^  - \([^ ]*\).*$tag.*/\1/p" | sort > "$results/all"
if (( $(wc -l < "$results/all") != all )); then
    echo "the suite has $(wc -l < "$results/all") scenarios for $revision, not $all" >&2
    exit 1
fi

# A * in a name stands for any text.
sed 's/ *#.*//' "$here/left-out.txt" | while read -r where name; do
    case $where in
        "$revision" | "$revision@$target") ;;
        "*" | "*@$target") [ "$revision" != extension ] || continue ;;
        *) continue ;;
    esac
    case $name in
        *"*"*) grep -x -- "${name//\*/.*}" "$results/all" || echo "$name" ;;
        ?*) echo "$name" ;;
    esac
done > "$results/left-out"
if unknown=$(sed 's/:.*//' "$results/left-out" | sort -u | comm -13 "$results/all" - | grep .); then
    echo "left-out.txt names what the suite does not have:" $unknown >&2
    exit 1
fi
# "server:" alone would be no list.
{ echo "server: ["; sed -n 's/.*:.*/  "&",/p' "$results/left-out"; echo "]"; } > "$results/allowed.yaml"
sed '/:/d' "$results/left-out" | sort -u | comm -23 "$results/all" - > "$results/wanted"

failed=0 ran=0
while read -r scenario; do
    out=$results/$scenario
    if ! suite server --url "$url" "${of[@]}" --scenario "$scenario" \
            --expected-failures "$results/allowed.yaml" --output-dir "$out" > "$out.log" 2>&1 < /dev/null; then
        echo "FAIL $scenario"; cat "$out.log"; failed=$((failed + 1)); continue
    fi
    # A skipped scenario exits with 0 too: at least one check of its own must have passed.
    passed=$({ cat "$out"/*/checks.json 2> /dev/null || true; } | node -e '
        const checks = JSON.parse(require("fs").readFileSync(0, "utf8") || "[]");
        console.log(checks.filter(c => c.status === "SUCCESS" && c.id !== "wire-schema-valid").length)')
    if (( passed == 0 )); then
        echo "FAIL $scenario: nothing was checked"; cat "$out.log"; failed=$((failed + 1)); continue
    fi
    echo "ok   $scenario ($passed)"; ran=$((ran + 1))
done < "$results/wanted"

expected=$(wc -l < "$results/wanted")
echo "$revision: $ran of $expected scenarios passed, $((all - expected)) left out"
(( failed == 0 && ran == expected && ran >= least ))
