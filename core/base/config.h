#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace dsec {

/// A registry as `dsec registry add` records it.
struct RegistryEntry {
  std::string name;           ///< [a-z0-9][a-z0-9._-]{0,62}
  std::string url;            ///< "file:///srv/layers", "3fs:///mount/layers"
  bool in_place = false;      ///< data blobs are read where they lie
  bool allow_any_fs = false;  ///< a 3fs: URL that is no 3FS mount is accepted
  /// Of s3: URLs: where the server is ("https://objects.example"), its region, and whether the bucket stands in the
  /// path. Empty: as the environment says.
  std::string endpoint, region;
  std::optional<bool> path_style;
  bool operator==(const RegistryEntry&) const = default;
};

/// What is particular about a host that is asked over HTTP.
struct HostEntry {
  std::string host;                  ///< "registry.example:5000"
  std::optional<bool> plain_http;    ///< without TLS; absent: on the loopback alone
  std::string ca;                    ///< file of certificates that are trusted beside the system's; empty: none
  std::vector<std::string> mirrors;  ///< "host[/path]", asked before it for images
  bool operator==(const HostEntry&) const = default;
};

/// Where else sandboxes can be: a daemon `dsec edge`, as `dsec context add` records it.
struct ContextEntry {
  std::string name;        ///< [a-z0-9][a-z0-9._-]{0,62}, not "local", which is this host
  std::string url;         ///< "unix:/run/dsec/edge.sock", "http://127.0.0.1:7701"
  std::string token_file;  ///< with what to say to it; empty: nothing
  bool operator==(const ContextEntry&) const = default;
};
/// The context that every host has: itself.
inline constexpr char kLocalContext[] = "local";

/// How layers are loaded while they are used; man/dsec-loader.7.md.
struct OnDemandConfig {
  bool by_default = false;                    ///< without being told
  std::chrono::milliseconds timeout{30'000};  ///< how long a read waits for a registry
  std::uint64_t cache_bytes = 10ull << 30;    ///< what chunks may take on disk
  bool fill = false;                          ///< what is not read comes, too, after what is
  double eager_share = 0.5;                   ///< a blob more of which is read comes as a whole; 1: never
  bool operator==(const OnDemandConfig&) const = default;
};

/// What config.yaml says; man/dsec-home.5.md is the reference. /etc/dsec/config.yaml is read first (and only read),
/// then the user's, whose entries win. With DSEC_CONFIG set, that file is the only one. Files that do not exist are
/// empty.
struct Config {
  std::vector<RegistryEntry> registries;  ///< in order of names
  std::vector<HostEntry> hosts;
  std::map<std::string, std::vector<std::string>> presets;  ///< of network rules, by name
  std::vector<std::string> resolvers;                       ///< name servers of the egress gateway; empty: the host's
  /// How long trajectories are kept, and how much room they may take.
  std::optional<std::chrono::milliseconds> trajectory_age;
  std::optional<std::uint64_t> trajectory_bytes;
  std::optional<OnDemandConfig> on_demand;
  std::optional<std::uint64_t> store_limit;  ///< bytes of blobs above which data that can be had again is evicted
  std::optional<bool> offline;               ///< what is not here is told and not fetched
  /// A variable whose name contains one of these words is a secret.
  std::optional<std::vector<std::string>> secrets;
  std::vector<ContextEntry> contexts;  ///< in order of names
  std::string default_context;         ///< whose sandboxes are meant when nobody says it; empty: this host's

  /// Throws Error (Usage) with file, line and column.
  static Config load();
  static Config parse(const std::string& yaml, const std::string& origin);

  /// $DSEC_CONFIG, else $XDG_CONFIG_HOME/dsec/config.yaml, else ~/.config/dsec/config.yaml: what is written to.
  static std::filesystem::path user_file();
};

/// Adds or replaces the entry of the same name in the user's file (0600), or takes it out; everything else in the file
/// stays as it is, comments included. Throws Error (Usage) for an invalid name. Processes may do so at once.
void add_registry_entry(const RegistryEntry& entry);
/// False when the user's file has no such entry.
bool remove_registry_entry(const std::string& name);

/// The same for contexts. The entry that is removed is no default any more.
void add_context_entry(const ContextEntry& entry);
bool remove_context_entry(const std::string& name);
/// Empty: this host.
void set_default_context(const std::string& name);

}  // namespace dsec
