# An apt beside the machine's own, for packages of another suite: what this machine is configured to use is read, never
# changed, and apt's signatures hold as usual.
# shellcheck shell=bash

# The archive and key that this machine gets its own packages from, as one line for a sources.list.
own_archive() {
  local archive key
  archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | grep -v security | head -n 1)
  if [ -z "$archive" ]; then
    echo "error: cannot tell which archive this machine installs from" >&2
    echo "  try: give apt a source with the component 'main', then run apt-get update" >&2
    return 1
  fi
  key=$(find /usr/share/keyrings -name "$(. /etc/os-release && echo "$ID")-archive-keyring.*" 2>/dev/null | sort | head -n 1)
  echo "${key:+[signed-by=$key] }$archive"
}

# write_private_apt DIR deb|deb-src SUITE...: an apt.conf in DIR for apt with sources, state and caches of its own.
write_private_apt() {
  local dir=$1 kind=$2 archive suite
  shift 2
  archive=$(own_archive) || return
  mkdir -p "$dir/parts" "$dir/state/lists/partial" "$dir/cache/archives/partial"
  for suite in "$@"; do
    echo "$kind $archive $suite main" >"$dir/parts/$suite.list"
  done
  cat >"$dir/apt.conf" <<CONF
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$dir/parts";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "$dir/state";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "$dir/cache";
APT::Sandbox::User "root";
CONF
}
