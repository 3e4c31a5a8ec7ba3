# Building, and finding what belongs to the tree.
# shellcheck shell=bash

build_dir() {
  if [ "$1" = dev ]; then echo build; else echo "build-$1"; fi
}

# configure_and_build PRESET [CMAKE OPTION...]
configure_and_build() {
  local preset=$1 log
  shift
  log=$(cmake --preset "$preset" "$@" 2>&1) || {
    printf '%s\n' "$log" >&2
    exit 1
  }
  cmake --build --preset "$preset" --parallel "$(nproc)"
}

# Our C and C++ sources, each ended by a NUL.
sources() {
  git ls-files -z --cached --others --exclude-standard -- '*.c' '*.cc' '*.h'
}

# The tree is formatted by version 14; another one would format it in another way.
clang_format() {
  local program
  for program in clang-format-14 clang-format; do
    if "$program" --version 2>/dev/null | grep -q 'version 14\.'; then
      echo "$program"
      return
    fi
  done
  echo "error: clang-format 14 is not installed, and no other version formats this tree alike" >&2
  return 1
}

run_clang_tidy() {
  need tidy
  cmake --preset dev >/dev/null
  git ls-files -z -- '*.cc' | grep -zv '^tests/' | xargs -0 -n 4 -P "$(nproc)" clang-tidy -p build --quiet
}
