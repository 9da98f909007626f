# shellcheck shell=bash
# shellcheck disable=SC2034  # Some variables are for the scripts that source this one.
# What quickstart.sh and test.sh have in common: install what is missing, find or install LibTorch,
# build. To be sourced, from the repository root. Every step says what it does and how long it took;
# each can be interrupted and run again.

readonly TORCH_REQUIREMENT='torch==2.13.0+cpu'
readonly TORCH_INDEX='https://download.pytorch.org/whl/cpu'
readonly CMAKE_MINIMUM='3.22'
# The lowest LibTorch that has everything Lockstep uses.
readonly TORCH_MINIMUM='2.11'

preset=release
libtorch=''
oracle_python=''
dry_run=false

readonly SETUP_OPTIONS_HELP="  --libtorch DIR  LibTorch to build with (the folder that holds share/cmake/Torch). Otherwise:
                  CMAKE_PREFIX_PATH, then the project's .venv, then the torch of your python3 if
                  it is $TORCH_MINIMUM or newer, then $TORCH_REQUIREMENT installed into .venv
  --dry-run       print the steps, do nothing
  -h, --help      this text"

# Programs that end in their own way on Ctrl-C would otherwise let the next step start.
trap 'fail "stopped; run it again to continue"' INT TERM

fail() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit 1
}

# parse_options ARGUMENTS...: takes the options that all scripts share, and usage() for --help. Anything else goes, with
# what follows it, to the script's own take_argument, which sets `taken` to the number of words that it used (before: 1).
parse_options() {
  while [[ $# -gt 0 ]]; do
    taken=1
    case $1 in
      --libtorch) libtorch=$(value_of "$@"); taken=2 ;;
      --libtorch=*) libtorch=${1#*=} ;;
      --dry-run) dry_run=true ;;
      -h | --help) usage; exit ;;
      *) take_argument "$@" ;;
    esac
    shift "$taken"
  done
}

# value_of OPTION [VALUE]...: prints the value of an option that needs one.
value_of() {
  [[ $# -ge 2 ]] || fail "$1 needs a value"
  printf '%s' "$2"
}

say() { printf '==> %s\n' "$*"; }

# step WHAT COMMAND...: runs the command and prints how long it took.
step() {
  local what=$1 start_us=${EPOCHREALTIME/[.,]/} tenths
  shift
  say "$what"
  if $dry_run; then
    printf '    %s\n' "$*"
    return
  fi
  "$@"
  tenths=$(((${EPOCHREALTIME/[.,]/} - start_us) / 100000))
  printf '    took %d.%d s\n' $((tenths / 10)) $((tenths % 10))
}

have() { command -v "$1" >/dev/null 2>&1; }

version_at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

cmake_is_new_enough() {
  have cmake && version_at_least "$(cmake --version | sed -n '1s/^cmake version //p')" "$CMAKE_MINIMUM"
}

has_package() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# Programs may come from anywhere, libraries are looked for as Debian packages.
missing_packages() {
  local package
  have g++ || echo g++
  cmake_is_new_enough || echo cmake
  have ninja || echo ninja-build
  have ccache || echo ccache
  have python3 || echo python3
  python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  for package in libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libxxhash-dev libgtest-dev libgmock-dev \
    libboost-dev libsodium-dev libstb-dev libdw-dev libbz2-dev zlib1g-dev; do
    has_package "$package" || echo "$package"
  done
  if [[ ${CXX-} == clang++-16 ]]; then
    have clang++-16 || echo clang-16
    has_package libclang-rt-16-dev || echo libclang-rt-16-dev
  fi
}

install_packages() {
  local -a as_root=()
  if [[ $EUID -ne 0 ]]; then
    have sudo || fail "these Debian packages are missing, and installing them needs root: run
  apt-get install $*"
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 "$@"
}

ensure_packages() {
  local -a missing
  if ! have apt-get || ! have dpkg-query; then
    say "Not a Debian or Ubuntu machine: g++, cmake >= $CMAKE_MINIMUM, ninja, python3 and the headers of
    CLI11, toml++, nlohmann-json, xxhash, googletest, Boost, libsodium, zlib, stb and elfutils' libdw must be there already"
    return
  fi
  mapfile -t missing < <(missing_packages)
  if [[ ${#missing[@]} -eq 0 ]]; then
    say 'Packages: all there'
    return
  fi
  step "Installing packages: ${missing[*]}" install_packages "${missing[@]}"
  $dry_run || cmake_is_new_enough || fail "cmake is $(cmake --version | sed -n 1p), \
which is older than $CMAKE_MINIMUM: this distribution is too old; try: pip install cmake"
}

# libtorch_version FOLDER: what its own CMake package says.
libtorch_version() {
  sed -n 's/^set(PACKAGE_VERSION "\(.*\)")$/\1/p' \
    "$1/share/cmake/Torch/TorchConfigVersion.cmake" 2>/dev/null
}

# Prints the folder of the torch that `$1` (a Python) would import, if it is new enough. It is not
# imported, which takes seconds; pip writes the metadata last, so an interrupted installation has none.
torch_of_python() {
  local folder
  folder=$("$1" - 2>/dev/null <<'PYTHON'
import importlib.metadata
import importlib.util

importlib.metadata.version("torch")
print(importlib.util.find_spec("torch").submodule_search_locations[0])
PYTHON
  ) || return 1
  [[ -e $folder/share/cmake/Torch/TorchConfig.cmake ]] || return 1
  version_at_least "$(libtorch_version "$folder")" "$TORCH_MINIMUM" || return 1
  echo "$folder"
}

torch_of_prefix_path() {
  local folder
  local -a folders
  IFS=':;' read -r -a folders <<<"${CMAKE_PREFIX_PATH:-}"
  for folder in "${folders[@]}"; do
    folder=${folder%/share/cmake}  # What torch.utils.cmake_prefix_path names is …/torch/share/cmake.
    if [[ -e $folder/share/cmake/Torch/TorchConfig.cmake ]]; then
      echo "$folder"
      return
    fi
  done
  return 1
}

# pip_install_torch OPTIONS...: into .venv.
pip_install_torch() {
  local log
  log=$(mktemp)
  # A plain index has no '+cpu' build and says so at once; a mirror or a local wheel has one.
  if ! .venv/bin/python -m pip install --retries 1 "$@" "$TORCH_REQUIREMENT" 2>"$log"; then
    echo "    not on the configured index; from $TORCH_INDEX:"
    if ! .venv/bin/python -m pip install "$@" --index-url "$TORCH_INDEX" "$TORCH_REQUIREMENT"; then
      cat "$log" >&2
      rm -f "$log"
      fail "$TORCH_REQUIREMENT could not be installed: is the network there? With a LibTorch of your \
own: --libtorch DIR"
    fi
  fi
  rm -f "$log"
}

# Makes the project's own environment, or completes one that was interrupted.
install_torch() {
  if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python3 -m venv --clear .venv || fail "python3 -m venv failed: $(command -v python3) needs its \
venv module (Debian: apt-get install python3-venv)"
  fi
  pip_install_torch
  .venv/bin/python -c 'import torch' 2>/dev/null || pip_install_torch --force-reinstall
}

# Sets `libtorch`.
ensure_libtorch() {
  if [[ -n $libtorch ]]; then
    [[ -e $libtorch/share/cmake/Torch/TorchConfig.cmake ]] ||
      fail "--libtorch $libtorch: there is no share/cmake/Torch/TorchConfig.cmake in it"
    libtorch=$(cd "$libtorch" && pwd)
  elif ! libtorch=$(torch_of_prefix_path) && ! libtorch=$(torch_of_python .venv/bin/python) &&
    ! libtorch=$(torch_of_python python3); then
    step "Installing LibTorch: $TORCH_REQUIREMENT into .venv (about 200 MB)" install_torch
    if $dry_run; then
      libtorch=.venv/lib/python3/site-packages/torch
    else
      libtorch=$(torch_of_python .venv/bin/python) ||
        fail '.venv has no torch that can be imported: remove .venv and try again'
    fi
  fi
  local version
  version=$(libtorch_version "$libtorch") || true
  $dry_run || version_at_least "$version" "$TORCH_MINIMUM" ||
    fail "the LibTorch in $libtorch is ${version:-of unknown version}: Lockstep needs \
$TORCH_MINIMUM or later; name another one with --libtorch DIR"
  say "LibTorch: $libtorch"
}

# The tests compare with Python's torch. Sets `oracle_python`.
ensure_python_torch() {
  oracle_python=$PWD/.venv/bin/python
  if torch_of_python .venv/bin/python >/dev/null; then return; fi
  if torch_of_python python3 >/dev/null; then
    oracle_python=$(command -v python3)
    return
  fi
  step "Installing what the tests compare with: $TORCH_REQUIREMENT into .venv" install_torch
}

# What reads the launcher's metrics and a training's event files in tests, what runs under the launcher, what
# examples/data/get.py needs, and what PyTorch's own test suites import: the tests of what is missing are skipped.
ensure_python_packages() {
  [[ $oracle_python == "$PWD/.venv/bin/python" ]] || return 0
  local packages=(prometheus-client tensorboard accelerate pytorch-lightning safetensors transformers pooch pillow
    expecttest numpy)
  "$oracle_python" -c 'import importlib.metadata, sys
for name in sys.argv[1:]: importlib.metadata.version(name)' "${packages[@]}" 2>/dev/null && return
  step "Installing what tests use into .venv: ${packages[*]}" \
    "$oracle_python" -m pip install --quiet "${packages[@]}" ||
    say 'not all are there: their tests will be skipped'
}

# g++ takes up to 2 GB for a file that includes LibTorch.
build_jobs() {
  local cores memory_gb jobs
  cores=$(nproc)
  memory_gb=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
  jobs=$((memory_gb / 2 < cores ? memory_gb / 2 : cores))
  echo $((jobs > 1 ? jobs : 1))
}

# configure_and_build TARGETS...
configure_and_build() {
  local -a variables=("-DTorch_DIR=$libtorch/share/cmake/Torch")
  [[ -z $oracle_python ]] || variables+=("-DLOCKSTEP_PYTHON=$oracle_python")
  step "Configuring build/$preset" cmake --preset "$preset" --log-level=WARNING "${variables[@]}"
  step "Building build/$preset: $*" \
    cmake --build --preset "$preset" --parallel "$(build_jobs)" --target "$@"
}
