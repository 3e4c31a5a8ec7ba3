# Which packages each part of ./dev needs (names of Debian 12 and newer), and how they get there.
# shellcheck shell=bash disable=SC2034 # the lists are read by name

readonly packages_build="g++ cmake ninja-build pkg-config ccache git ca-certificates
  libarchive-dev libgit2-dev libsqlite3-dev libyaml-cpp-dev libcurl4-openssl-dev libssl-dev libseccomp-dev
  zlib1g-dev libzstd-dev liblzma-dev liblz4-dev libbz2-dev catch2 libcli11-dev nlohmann-json3-dev libfmt-dev libspdlog-dev libboost1.81-dev"
readonly packages_test="python3 python3-pytest python3-pytest-timeout python3-pytest-xdist attr acl busybox-static bzip2 xz-utils zstd umoci
  e2fsprogs python3-jsonschema python3-yaml python3-paramiko openssh-client"
# Servers and tools of the lane that talks to registries.
readonly packages_registry="docker-registry skopeo umoci apache2-utils openssl nginx nodejs npm python3-botocore"
# What the sandbox lane compares with, looks at pages with, and installs.
readonly packages_sandbox="buildah chromium pandoc libnbd-bin qemu-utils"
readonly packages_guest="qemu-system-x86 cpio mmdebstrap"
# The lane that starts virtual machines.
readonly packages_vm="qemu-system-x86 e2fsprogs busybox-static ovmf mmdebstrap dosfstools mtools syslinux syslinux-common systemd-boot-efi"
# The Python SDK, which is checked and tested.
readonly packages_sdk="python3-aiohttp"
readonly packages_lint="clang-format-14 shellcheck mypy"
readonly packages_tidy="clang-tidy"
readonly packages_clang="clang libclang-rt-dev"
readonly packages_bench="python3 podman qemu-utils runc bubblewrap mmdebstrap docker-registry skopeo umoci iproute2 dpkg-dev"
readonly packages_demo="mmdebstrap git python3 dpkg-dev"
# Makes the man pages that are installed.
readonly packages_install="pandoc"

is_installed() {
  # Node.js from elsewhere brings its own, beside which Debian's cannot be installed.
  case $1 in
    nodejs | npm) ! command -v "${1/nodejs/node}" >/dev/null || return 0 ;;
    # Later distributions have one that is newer.
    libboost1.81-dev) [ "$(sed -n 's/^#define BOOST_VERSION //p' /usr/include/boost/version.hpp 2>/dev/null || echo 0)" -lt 108100 ] || return 0 ;;
  esac
  dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
}

missing_packages() {
  local group list package
  for group in "$@"; do
    list="packages_$group"
    for package in ${!list}; do
      is_installed "$package" || echo "$package"
    done
  done | sort -u | tr '\n' ' '
}

# Of these packages the ones that apt knows. Newer distributions no longer have the version of clang-format that this tree
# is formatted with, and the rest of the tests does not need it; of Boost their own version is new enough.
offered() {
  local package
  for package in "$@"; do
    if apt-cache show "$package" >/dev/null 2>&1; then
      echo "$package"
      continue
    fi
    case $package in
      clang-format-14) ;;
      libboost1.81-dev) echo libboost-dev ;;
      *) echo "$package" ;;
    esac
  done
}

# need GROUP...: returns when every package of these groups is installed.
need() {
  local missing
  if ! command -v dpkg-query >/dev/null; then
    echo "note: this is no Debian; what ./dev needs is listed in scripts/packages.sh" >&2
    return
  fi
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  [ "$(id -u)" != 0 ] || apt-get -q update </dev/null >&2
  # shellcheck disable=SC2086
  missing=$(offered $missing | tr '\n' ' ')
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    echo "error: packages are missing that this needs" >&2
    echo "  try: sudo apt-get update && sudo apt-get install --no-install-recommends $missing" >&2
    exit 1
  fi
  echo "installing: $missing" >&2
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $missing </dev/null >&2
}
