#!/usr/bin/env bash
# Builds a profile-guided release: target/guided/dist/promptgate. It takes about three times as long as
# `cargo build --profile dist`.
#
# 1. An instrumented binary serves the load of benches/load, and writes which code that took, and how often.
# 2. The compiler lays out the release by this profile.
#
# The profile is made anew each time: it holds for one compiler and one commit.
set -euo pipefail
cd "$(dirname "$0")/.."

llvm=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
profdata=${LLVM_PROFDATA:-$(find "$(rustc --print sysroot)/lib/rustlib" -name llvm-profdata -print -quit)}
# Another version could not read the profile, which would show only after the first build.
[[ $("$profdata" --version 2>/dev/null) == *"LLVM version $llvm."* ]] || {
    echo "llvm-profdata of LLVM $llvm is missing: run 'rustup component add llvm-tools', or set LLVM_PROFDATA to its path" >&2
    exit 1
}

folder=$PWD/target/guided
profile=$folder/profile
build() { RUSTFLAGS="${RUSTFLAGS:-} $1" cargo build --profile dist --locked --bin promptgate --target-dir "$2"; }

build "-Cprofile-generate=$profile" "$folder/instrumented"
# Build scripts and macros are instrumented too, and have written theirs.
rm -rf "$profile"
# The harness needs no optimized build to make the gateway work.
load=(cargo bench --locked --profile dev --bench load -- --binary "$folder/instrumented/dist/promptgate")
"${load[@]}" --rounds 1
"${load[@]}" scale --prompts 1000,10000 --streams 500 --changes 1
"$profdata" merge -o "$folder/profile.profdata" "$profile"

build "-Cprofile-use=$folder/profile.profdata" "$folder"
echo "built: target/guided/dist/promptgate"
