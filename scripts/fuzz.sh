#!/usr/bin/env bash
# Runs the differential fuzzer with fresh seeds for some hours, and writes what fails. docs/fuzzing.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

hours=1
build=build/dev
first=$(($(date +%s) * 1000))
failures=fuzz_failures.txt
batch=200

usage() {
  cat <<TEXT
Usage: scripts/fuzz.sh [options]

  --hours=N        how long; default $hours
  --build=DIR      where \`lockstep\` and \`differential\` were built; default $build
  --first=SEED     default: by the clock
  --failures=FILE  lines "<ranks> <seed>" of what failed are added to it; default $failures
TEXT
}

for argument in "$@"; do
  case "$argument" in
    --hours=*) hours=${argument#*=} ;;
    --build=*) build=${argument#*=} ;;
    --first=*) first=${argument#*=} ;;
    --failures=*) failures=${argument#*=} ;;
    --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
seconds=$(awk -v hours="$hours" 'BEGIN { printf "%d", hours * 3600 }')
SECONDS=0
seeds=0
failed=0

# A batch ends with the seed that hangs or crashes a job; the rest of it goes on behind that one.
run_batch() {
  local ranks=$1 seed=$2 left=$3
  while [[ $left -gt 0 ]]; do
    local status=0
    : >"$work/progress"
    "$build/bin/lockstep" run --standalone --nproc-per-node="$ranks" "$build/bin/differential" \
      --seeds="$seed:$left" --progress="$work/progress" >"$work/log" 2>&1 || status=$?
    [[ $status -eq 0 ]] && return
    local at
    at=$(cat "$work/progress")
    { grep -oE "seed [0-9]+ of $ranks ranks" "$work/log" | awk '{ print $2 }'
      grep -q "seeds, " "$work/log" || echo "$at"; } | sort -un |
      while read -r one; do echo "$ranks $one" | tee -a "$failures"; done
    grep -E "seed [0-9]+ of|error" "$work/log" | cut -c1-400 | head -20
    failed=1
    grep -q "seeds, " "$work/log" && return
    [[ -n $at ]] || return
    left=$((seed + left - at - 1))
    seed=$((at + 1))
  done
}

while [[ $SECONDS -lt $seconds ]]; do
  for ranks in 2 3 4 2 1; do
    run_batch "$ranks" "$first" "$batch"
    first=$((first + batch))
    seeds=$((seeds + batch))
  done
  echo "$seeds seeds in $SECONDS s"
done
exit "$failed"
