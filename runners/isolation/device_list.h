#pragma once

/// What every sandbox has in /dev. Used by programs without a C library too.
namespace dsec::runners {

struct DeviceNode {
  const char* name;  ///< below /dev
  unsigned major, minor;
};

/// Bound from the host's /dev, mode 0666: a device made inside a user namespace could not be opened.
inline constexpr DeviceNode kDevices[] = {
    {"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
};

struct DeviceLink {
  const char *name, *target;
};

inline constexpr DeviceLink kDeviceLinks[] = {
    {"fd", "/proc/self/fd"},       {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"},
    {"stderr", "/proc/self/fd/2"}, {"core", "/proc/kcore"},      {"ptmx", "pts/ptmx"},
};

}  // namespace dsec::runners
