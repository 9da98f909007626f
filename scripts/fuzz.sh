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

refuse() {
  echo "fuzz.sh: $1; see scripts/fuzz.sh --help" >&2
  exit 2
}

for argument in "$@"; do
  case "$argument" in
    --hours=*) hours=${argument#*=} ;;
    --build=*) build=${argument#*=} ;;
    --first=*) first=${argument#*=} ;;
    --failures=*) failures=${argument#*=} ;;
    --help) usage; exit 0 ;;
    *) refuse "unknown argument '$argument'" ;;
  esac
done
[[ $hours =~ ^([0-9]+\.?[0-9]*|\.[0-9]+)$ ]] || refuse "--hours='$hours': give a number of hours, as in 0.5"
[[ $first =~ ^(0|[1-9][0-9]{0,17})$ ]] || refuse "--first='$first': give the first seed, an integer from 0"
for program in lockstep differential; do
  [[ -x $build/bin/$program ]] ||
    refuse "there is no program $build/bin/$program; build it, or give another folder with --build"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
seconds=$(awk -v hours="$hours" 'BEGIN { printf "%d", hours * 3600 }')
SECONDS=0
seeds=0
failed=0

# The seeds that the log names, and the one that ran when the job crashed or hung.
failed_seeds() {
  local ranks=$1 running=$2
  {
    grep -oE "seed [0-9]+ of $ranks ranks" "$work/log" | awk '{ print $2 }' || true
    grep -q "seeds, " "$work/log" || echo "$running"
  } | sort -un
}

# A batch ends with the seed that hangs or crashes a job; the rest of it goes on behind that one.
run_batch() {
  local ranks=$1 seed=$2 left=$3
  while [[ $left -gt 0 && $SECONDS -lt $seconds ]]; do
    local status=0
    : >"$work/progress"
    "$build/bin/lockstep" run --standalone --nproc-per-node="$ranks" "$build/bin/differential" \
      --seeds="$seed:$left" --progress="$work/progress" >"$work/log" 2>&1 || status=$?
    [[ $status -eq 0 ]] && return
    failed=1
    local running
    running=$(cat "$work/progress")
    if [[ -z $running ]]; then
      tail -n 20 "$work/log" >&2
      echo "fuzz.sh: the job ended with exit code $status before its first seed; nothing is added to $failures" >&2
      exit 1
    fi
    failed_seeds "$ranks" "$running" | while read -r one; do echo "$ranks $one" | tee -a "$failures"; done
    { grep -E "seed [0-9]+ of|error" "$work/log" || echo "exit code $status"; } | cut -c1-400 | sed -n 1,20p
    grep -q "seeds, " "$work/log" && return
    left=$((seed + left - running - 1))
    seed=$((running + 1))
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
