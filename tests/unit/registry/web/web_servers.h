#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/http_server.h"

namespace dsec::registry::test {

/// Message and hints of the Error that `action` throws; "nothing" when it throws none.
std::string told(const std::function<void()>& action);

/// Gives out the files of a folder below /layers/, with ETags and ranges, as static web servers do.
class WebFolder {
 public:
  explicit WebFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}
  dsec::test::Reply operator()(const dsec::test::Seen& seen) const;

 private:
  std::filesystem::path folder_;
};

/// One bucket of an S3 server in memory, named in the path. Refuses what is not signed with `secret` over exactly what
/// came, and content that has not the digest it is sent with.
class MemoryBucket {
 public:
  struct State {
    std::map<std::string, std::string> objects;
    std::map<std::string, std::map<int, std::string>> uploads;  ///< parts by id
    std::string key_id = "id", secret = "secret", session_token;
    bool knows_conditions = true, anonymous = false;
    std::string modified;  ///< Last-Modified of every object; empty: not told
    std::size_t page = 2;  ///< keys of a listing
    /// Answers instead, when it gives something.
    std::function<std::optional<dsec::test::Reply>(const dsec::test::Seen&)> instead;
  };

  explicit MemoryBucket(std::string name) : name_(std::move(name)) {}
  dsec::test::Reply operator()(const dsec::test::Seen& seen) const;
  State& state() const { return *state_; }

 private:
  dsec::test::Reply put(const dsec::test::Seen& seen, const std::string& key) const;
  dsec::test::Reply post(const dsec::test::Seen& seen, const std::string& key) const;
  dsec::test::Reply list(const dsec::test::Seen& seen) const;
  std::string fault(const dsec::test::Seen& seen) const;

  std::string name_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// Variables of the environment for one test; what was there comes back.
class Variables {
 public:
  explicit Variables(std::map<std::string, std::string> wanted);
  ~Variables();
  Variables(const Variables&) = delete;

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace dsec::registry::test
