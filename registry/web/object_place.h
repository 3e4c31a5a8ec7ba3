#pragma once

#include <chrono>
#include <map>
#include <mutex>

#include "core/http/client.h"
#include "registry/hosts.h"
#include "registry/layout/named_files.h"

namespace dsec::registry {

/// What one command talks to web servers with: connections, and what is configured about hosts.
struct WebAccess {
  /// A host that is asked, and the one whose configuration counts for it; both as "host" or "host:port".
  struct Alias {
    std::string asked, known;
  };
  WebAccess(const Config& config, http::ClientOptions options, const Alias& alias = {});
  Hosts hosts;
  http::Client client;
};
/// `notice` is told what a person may want to know: who has to be waited for, and why.
http::ClientOptions patient(std::function<void(const std::string&)> notice);
/// Tries but once, and not for long.
http::ClientOptions impatient();

/// The files of a registry as resources of an HTTP server. What it answers is not believed. Any number of threads may
/// read at once.
class ObjectPlace : public NamedFiles {
 public:
  std::optional<std::string> read_file(const std::string& name, std::uint64_t limit,
                                       Missing missing = Missing::Possible) const override;
  bool has_file(const std::string& name, Missing missing = Missing::Possible) const override;
  /// Empty when there is no such file.
  std::optional<std::uint64_t> size(const std::string& name) const;
  /// When it was written, by the server's clock; empty when there is no such file. Throws Error where it is not told.
  std::optional<std::chrono::system_clock::time_point> modified(const std::string& name) const;
  /// The whole file or a part of it; false when there is no such file. A part of another version than the last answer
  /// told, by its ETag, is an Error.
  bool read(const std::string& name, http::Download& download) const;
  /// Throws Error (Usage) when there is no registry.
  void check_marker() const;

 protected:
  virtual http::Url url(const std::string& name) const = 0;
  virtual http::Answer send(http::Request request, http::Download* download) const = 0;
  virtual Error refusal(const http::Request& request, const http::Answer& answer) const = 0;
  http::Request request(const char* method, const std::string& name) const;

 private:
  /// Empty when there is no such file. Throws Error for all that is no success.
  std::optional<http::Answer> ask(const http::Request& request, http::Download* download) const;

  mutable std::mutex mutex_;
  mutable std::map<std::string, std::string> etags_;  // by name: strong ones
};

/// Of a URL: '+' is a blank to some servers.
std::string escaped_name(const std::string& name);

}  // namespace dsec::registry
