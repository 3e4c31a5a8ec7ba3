#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "layers/source.h"

namespace dsec::layers {

/// A Debian (or derived) system to be made by mmdebstrap(1).
struct DebootstrapRequest {
  std::string suite;
  std::string variant = "minbase";
  std::vector<std::string> include;     ///< packages beside those of the variant
  std::vector<std::string> components;  ///< "main", …; empty: mmdebstrap's default
  std::string mirror;                   ///< empty: mmdebstrap's default for the suite
  std::optional<std::int64_t> epoch;    ///< SOURCE_DATE_EPOCH: times after it become it, and dates in files are it
  std::filesystem::path spool;          ///< where the archive is kept for a while

  /// "SUITE[?include=a,b&variant=V&components=main,contrib&mirror=URL&epoch=SECONDS]", man/dsec-sources.7.md. Throws
  /// Error (Usage).
  static DebootstrapRequest parse(std::string_view text);
};

/// Where a run of mmdebstrap leaves the system.
struct DebootstrapRun {
  std::string platform;                   ///< "linux/arm64"; empty: this host's
  int output = -1;                        ///< a file that becomes a tar archive
  std::filesystem::path directory;        ///< or an empty directory, which then has it
  std::vector<std::string> options = {};  ///< more of mmdebstrap's
};
/// Throws Error with mmdebstrap's last words.
void run_mmdebstrap(const DebootstrapRequest& request, const DebootstrapRun& run, Progress& progress);

/// Runs mmdebstrap when it is examined; its archive goes through the reader of tar: to be. What it copies from this
/// host (resolv.conf, hostname) and the residue of the scrub list stay out. The identity is that of the package
/// versions.
std::unique_ptr<Source> open_debootstrap_source(DebootstrapRequest request);

/// "NAME:ARCHITECTURE VERSION" of each installed package in a dpkg status file, sorted.
std::vector<std::string> installed_packages(std::string_view dpkg_status);

}  // namespace dsec::layers
