#!/usr/bin/env bash
# Checks C++ files with clang-format and clang-tidy. clang-tidy also reports clang's own analysis of locks
# (-Wthread-safety, see lockstep/base/internal/mutex.h), so each file is parsed once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

readonly LLVM_VERSION=14  # g++ 12 and Debian 12 go with it; other versions format differently.
readonly build=build/lint
all=false
base=''
paths=()
jobs=''

usage() {
  cat <<TEXT
Usage: scripts/lint.sh [options] [BASE] [-- PATH...]

Checks the C++ files that differ from the commit BASE, committed or not: their format (clang-format), then clang-tidy
with the checks of .clang-tidy, which include clang's analysis of locks. BASE is by default the merge base with
origin/main, or HEAD~1 if there is no origin/main. PATH limits the check to files or folders.

    scripts/lint.sh                          what you changed on this branch
    scripts/lint.sh HEAD                     what you have not committed yet
    scripts/lint.sh --all -- lockstep/os     a whole folder

A header is checked in a source that includes it. clang-tidy takes seconds per source, 30 with LibTorch's headers. The
script configures $build for the compile commands and builds nothing. Exit code: 0, or 1 if there are findings.

  --all           all files, not only changes since BASE
  --jobs N        sources checked at a time; default: one per processor, if memory permits
$SETUP_OPTIONS_HELP
TEXT
}

take_argument() {
  case $1 in
    --all) all=true ;;
    --jobs) jobs=$(value_of "$@"); taken=2 ;;
    --jobs=*) jobs=${1#*=} ;;
    --) paths=("${@:2}"); taken=$# ;;
    -*) fail "unknown option $1; see scripts/lint.sh --help" ;;
    *) [[ -z $base ]] || fail "two commits, $base and $1; paths follow after --"; base=$1 ;;
  esac
}

parse_options "$@"
[[ -z $jobs || $jobs =~ ^[1-9][0-9]*$ ]] || fail "--jobs '$jobs': give a number from 1"
[[ -z $base ]] || ! $all || fail "--all checks all files: leave $base out"

# Prints the program: NAME-14, or NAME if that is of version 14.
find_tool() {
  if have "$1-$LLVM_VERSION"; then
    echo "$1-$LLVM_VERSION"
  elif have "$1" && [[ $("$1" --version) == *"version $LLVM_VERSION."* ]]; then
    echo "$1"
  else
    return 1
  fi
}

find_tools() {
  local missing=()
  clang_format=$(find_tool clang-format) || missing+=("clang-format-$LLVM_VERSION")
  clang_tidy=$(find_tool clang-tidy) || missing+=("clang-tidy-$LLVM_VERSION")
  [[ ${#missing[@]} -eq 0 ]] || fail "missing: ${missing[*]}; run
  apt-get install ${missing[*]}"
}

resolve_base() {
  [[ -n $base ]] || base=$(git merge-base HEAD origin/main 2>/dev/null) || base=HEAD~1
  git rev-parse --verify --quiet "$base^{commit}" >/dev/null ||
    fail "there is no commit $base; name another one, or take --all"
}

# Prints the files to check, one a line.
list_files() {
  local -a chosen=(':(glob)**/*.cpp' ':(glob)**/*.h')
  local path
  if [[ ${#paths[@]} -gt 0 ]]; then
    chosen=()
    for path in "${paths[@]}"; do
      path=${path%/}
      if [[ -d $path ]]; then chosen+=(":(glob)$path/**/*.cpp" ":(glob)$path/**/*.h"); else chosen+=("$path"); fi
    done
  fi
  {
    if $all; then
      git ls-files -- "${chosen[@]}"
    else
      git diff --name-only --diff-filter=d "$base" -- "${chosen[@]}"
    fi
    git ls-files --others --exclude-standard -- "${chosen[@]}"
  } | sort -u | while read -r path; do [[ ! -f $path ]] || echo "$path"; done
}

is_compiled() { grep -qF "\"file\": \"$PWD/$1\"" "$build/compile_commands.json"; }

# Prints a source that includes the header: its own, or the first one, possibly through other headers.
includer_of() {
  local header own=${1%.h}.cpp
  local -a includers level=("$1") seen=()
  if [[ -f $own ]] && is_compiled "$own"; then
    echo "$own"
    return
  fi
  while [[ ${#level[@]} -gt 0 ]]; do
    mapfile -t includers < <(for header in "${level[@]}"; do
      git grep --untracked -lE "#include [<\"]$header[>\"]" -- '*.cpp' '*.h'
    done | sort -u)
    level=()
    for header in "${includers[@]}"; do
      if [[ $header == *.cpp ]]; then
        if is_compiled "$header"; then
          echo "$header"
          return
        fi
      elif [[ " ${seen[*]} " != *" $header "* ]]; then
        level+=("$header")
        seen+=("$header")
      fi
    done
  done
  return 1
}

# Sets `sources` to what clang-tidy parses for `files`.
choose_sources() {
  local file source
  local -A chosen=()
  for file in "${files[@]}"; do
    if [[ $file == *.h ]] && source=$(includer_of "$file"); then
      chosen[$source]=1
    elif [[ $file == *.cpp ]] && is_compiled "$file"; then
      chosen[$file]=1
    else
      echo "    not compiled here, format only: $file"
    fi
  done
  mapfile -t sources < <(printf '%s\n' "${!chosen[@]}" | sed '/^$/d' | sort)
}

# Prints clang-tidy's option that leaves out findings in other files than those to check.
line_filter() {
  local names
  names=$(printf '{"name":"%s"},' "${files[@]}")
  printf '%s' "--line-filter=[${names%,}]"
}

# check_source NUMBER SOURCE
check_source() {
  local began=$SECONDS result=0 findings
  findings=$("$clang_tidy" -p "$build" --quiet ${filter:+"$filter"} "$2" 2>&1) || result=1
  findings=$(sed -E '/^[0-9]+ warnings?( and [0-9]+ errors?)? generated\.$/d' <<<"$findings")
  printf '    [%d/%d] %s: %d s\n' "$1" "$count" "$2" $((SECONDS - began))
  [[ $result -eq 0 ]] || printf '%s\n' "$findings"
  return $result
}

# clang-format's --dry-run complains of the ends of nested namespaces, which it then leaves as they are.
check_format() {
  local file
  for file in "${files[@]}"; do
    "$clang_format" "$file" | cmp -s - "$file" && continue
    echo "    not formatted; run $clang_format -i $file"
    failed=true
  done
}

check_sources() {
  export -f check_source
  export clang_tidy build count=${#sources[@]} filter=''
  $all && [[ ${#paths[@]} -eq 0 ]] || filter=$(line_filter)
  printf '%s\n' "${sources[@]}" | awk '{ print NR; print }' |
    xargs -d '\n' -n 2 -P "${jobs:-$(build_jobs)}" bash -c 'check_source "$@"' check_source ||
    failed=true
}

find_tools
$all || resolve_base
mapfile -t files < <(list_files)
if [[ ${#files[@]} -eq 0 ]]; then
  say "No C++ file to check${base:+: none differs from $base}"
  exit
fi
failed=false
step "Format of ${#files[@]} files" check_format
ensure_libtorch
# A folder of its own, in which nothing is built: clang cannot read headers that g++ precompiled.
step "Configuring $build" cmake --preset dev -B "$build" --log-level=WARNING \
  "-DTorch_DIR=$libtorch/share/cmake/Torch"
sources=()
if ! $dry_run; then choose_sources; fi
[[ ${#sources[@]} -eq 0 ]] || step "clang-tidy of ${#sources[@]} sources" check_sources
! $failed || fail 'there are findings, see above'
say 'No findings'
