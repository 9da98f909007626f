#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

binaries=build/release/bin

usage() {
  cat <<TEXT
Usage: scripts/docs.sh [options]

Builds the site into build/docs/site: guides, the reference of the C++ API (Doxygen) and of the command line (from the
programs' parsers), explanations, search. Fails on a broken link, and on a public symbol without a comment.
Needs doxygen and doxygen-awesome-css (Debian), and Lockstep's programs; installs mkdocs-material and jieba (for the
search in Chinese) into build/docs/venv. After that it needs no network.

  --binaries DIR  folder of the programs (default: $binaries)
  --dry-run       print the steps, do nothing
  -h, --help      this text
TEXT
}

take_argument() {
  case $1 in
    --binaries) binaries=$(value_of "$@"); taken=2 ;;
    --binaries=*) binaries=${1#*=} ;;
    *) fail "unknown argument $1; see scripts/docs.sh --help" ;;
  esac
}

readonly out=build/docs
readonly python=$out/venv/bin/python
readonly stylesheet=/usr/share/doxygen-awesome-css/doxygen-awesome.css

missing_tools() {
  have doxygen || echo doxygen
  [[ -e $stylesheet ]] || echo doxygen-awesome-css
}

install_mkdocs() {
  [[ -x $python ]] || python3 -m venv "$out/venv"
  "$python" -m pip install --quiet --quiet --requirement docs/site/requirements.txt
}

build_api() {
  rm -rf "$out/api"
  mkdir -p "$out/api"
  doxygen - < <(
    cat docs/site/Doxyfile
    echo "OUTPUT_DIRECTORY = $out/api"
    echo "PROJECT_NUMBER = $(sed -n 's/^project(lockstep VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)"
    echo "HTML_EXTRA_STYLESHEET = $stylesheet"
  )
}

build_pages() {
  "$python" docs/site/assemble.py . "$out/pages"
  "$python" scripts/render_commands.py "$binaries/lockstep" "--markdown=$out/pages/commands"
  "$python" docs/site/api_pages.py "$out/api/xml" "--page=$out/pages/reference/api.md"
  cp docs/site/site.css docs/site/iframe-worker.js "$out/pages"
}

# Strict: a warning is an error, except that --quiet would hide it from mkdocs too.
build_site() {
  local log=$out/mkdocs.log
  if ! NO_MKDOCS_2_WARNING=1 "$python" -m mkdocs build --strict --config-file docs/site/mkdocs.yml >"$log" 2>&1; then
    grep -E '^(WARNING|ERROR|Aborted|[A-Z]\w+Error)' "$log" >&2 || cat "$log" >&2
    fail "mkdocs failed; all of its output is in $log"
  fi
  cp -r "$out/api/html" "$out/site/api"
  # The way back from Doxygen's pages.
  sed -i 's#\(<div id="projectbrief">\)[^<]*#\1<a href="../index.html">Guides and command line</a>#' "$out"/site/api/*.html
}

parse_options "$@"
[[ -x $binaries/lockstep ]] || $dry_run ||
  fail "there is no $binaries/lockstep; build it, or name another folder with --binaries DIR"
mapfile -t missing < <(missing_tools)
[[ ${#missing[@]} -eq 0 ]] || step "Installing packages: ${missing[*]}" install_packages "${missing[@]}"
"$python" -c 'import jieba, material, mkdocs' 2>/dev/null || step "Installing mkdocs-material and jieba into $out/venv" install_mkdocs
step 'C++ API' build_api
step 'Public symbols have comments' python3 docs/site/api_pages.py "$out/api/xml" --check
step 'Pages' build_pages
step 'Site' build_site
step 'Links' python3 docs/site/check_links.py "$out/site"
$dry_run || say "Open $out/site/index.html"
