#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

build_only=false
example_arguments=()

usage() {
  cat <<TEXT
Usage: scripts/quickstart.sh [options] [-- arguments of the example]

Installs what is missing (Debian packages, LibTorch), builds, and trains a small convolutional net
on handwritten digits with two processes. Run again, it resumes, or says that the training is
complete. Ctrl-C stops it. To build every other program afterwards:

  cmake --build --preset release

  --build-only    stop after building the library, the lockstep command and the example
$SETUP_OPTIONS_HELP

The example's own arguments: scripts/quickstart.sh -- --help
TEXT
}

take_argument() {
  case $1 in
    --build-only) build_only=true ;;
    --) example_arguments=("${@:2}"); taken=$# ;;
    *) fail "unknown argument $1; see scripts/quickstart.sh --help" ;;
  esac
}

parse_options "$@"
ensure_packages
ensure_libtorch
configure_and_build lockstep digits
if $build_only; then exit; fi

train=(build/release/bin/lockstep run --standalone --nproc-per-node=2 build/release/bin/digits
  "${example_arguments[@]}")
say 'Training on two processes:'
printf '    %s\n' "${train[*]}"
# In place of this shell, so that Ctrl-C reaches the launcher alone.
$dry_run || exec "${train[@]}"
