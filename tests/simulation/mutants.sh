#!/usr/bin/env bash
# Shows that the simulation finds bugs: builds the gateway with each patch in `mutants`, and runs seeds until one fails.
# Without arguments: all patches; else those whose names contain one of the arguments.
# PROMPTGATE_SIMULATION_SEEDS (default 1000) is the most that a patch may take.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD tree=$PWD/target/mutants/tree
export PROMPTGATE_SIMULATION_SEEDS=${PROMPTGATE_SIMULATION_SEEDS:-1000} PROMPTGATE_SIMULATION_UNTIL_FAILURE=1
# Not the folder of the tree itself, whose builds would be taken for those of the mutants.
export CARGO_TARGET_DIR=$PWD/target/mutants/build
simulation=(cargo test --quiet --locked --workspace --test simulation)
rm -rf "$tree" && git worktree prune
git worktree add --quiet --detach "$tree"
trap 'git worktree remove --force "$tree"' EXIT
cd "$tree"
missed=0
for patch in "$root"/tests/simulation/mutants/*.patch; do
  name=$(basename "$patch" .patch)
  if (($#)) && ! grep -qF "$(printf '%s\n' "$@")" <<<"$name"; then continue; fi
  log=$root/target/mutants/$name.log
  git checkout --quiet .
  # One that does not follow the code must not hide what becomes of the others.
  if ! git apply "$patch" > "$log" 2>&1 || ! "${simulation[@]}" --no-run > "$log" 2>&1; then
    tail -n 30 "$log"
    printf '%-45s DOES NOT APPLY OR BUILD\n' "$name"
    missed=1
  elif "${simulation[@]}" > "$log" 2>&1 || ! found=$(grep -m 1 '^seed' "$log"); then
    printf '%-45s NOT FOUND\n' "$name"
    missed=1
  else
    printf '%-45s %s\n' "$name" "${found:0:200}"
  fi
done
exit "$missed"
