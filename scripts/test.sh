#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

ctest_arguments=()
targets=(all tests)
all=false
build_only=false

usage() {
  cat <<TEXT
Usage: scripts/test.sh [options] [arguments of ctest]

Installs what is missing (Debian packages, LibTorch), builds everything and runs the tests.
Further arguments go to ctest: scripts/test.sh -R sampler -V

  --all           also the tests with the label \`full\`, which take minutes each, and all cases of the others
  --preset NAME   which build: release (default), dev, ci, asan, tsan
  --targets=LIST  what to build, separated by spaces, instead of everything
  --build-only    build, and run no test
$SETUP_OPTIONS_HELP
TEXT
}

# By what ctest keeps of each test: name, runs and mean seconds.
print_slowest() {
  local costs=build/$preset/Testing/Temporary/CTestCostData.txt
  if $dry_run || [[ ! -f $costs ]]; then return; fi
  say "The slowest tests, in seconds"
  awk 'NF == 3 && $3 > 0 { printf "    %6.1f  %s\n", $3, $1 }' "$costs" | sort -rn | sed -n 1,10p
}

take_argument() {
  case $1 in
    --preset) preset=$(value_of "$@"); taken=2 ;;
    --preset=*) preset=${1#*=} ;;
    --targets=*) read -r -a targets <<< "${1#*=}" ;;
    --all) all=true; export ALL_CASES=1 ;;
    --build-only) build_only=true ;;
    *) ctest_arguments+=("$1") ;;
  esac
}

parse_options "$@"
$all || ctest_arguments+=(-LE '^full$')
ensure_packages
ensure_libtorch
ensure_python_torch
ensure_python_packages &  # The build needs none of them.
packages=$!
configure_and_build "${targets[@]}"
wait "$packages"
if $build_only; then exit; fi
trap print_slowest EXIT
step "Testing build/$preset" ctest --preset "$preset" "${ctest_arguments[@]}"
