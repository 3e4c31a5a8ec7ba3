#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/digest.h"
#include "core/base/progress.h"

namespace dsec::engine {

/// An image of a registry, for whoever makes a layer of it. Everything throws Error.
class RemoteImage {
 public:
  virtual ~RemoteImage() = default;

  struct Root {
    Digest digest;
    std::uint64_t size;
    std::string media_type;
  };
  /// The manifest or index that the reference names.
  virtual Root root() = 0;
  /// The bytes of a manifest or index, and of a blob that is a document; verified.
  virtual std::string manifest(const Digest& digest) = 0;
  virtual std::string document(const Digest& digest) = 0;
  /// Takes the bytes of a blob.
  class Sink {
   public:
    virtual ~Sink() = default;
    virtual void piece(std::string_view bytes) = 0;
    /// What came so far was wrong: all of it comes once more, from somebody else.
    virtual void anew() = 0;
  };
  /// Gives `sink` the bytes of a blob in order, each once, however often the connection breaks. Exactly `size` of them;
  /// their digest is for the caller to verify: what the last place gives that can be asked is given as it is. Any
  /// number of threads may fetch at once.
  virtual void fetch(const Digest& digest, std::uint64_t size, Sink& sink) = 0;
  /// Ends what other threads are fetching by an Error.
  virtual void cancel() = 0;
  /// "docker.io/library/debian:12".
  virtual std::string name() const = 0;
};

/// Opens "//HOST/REPOSITORY[:TAG|@DIGEST]". Nothing is asked before root(). `progress` is told of waits and detours.
using OpenRemoteImage = std::function<std::unique_ptr<RemoteImage>(const std::string& reference, Progress& progress)>;

}  // namespace dsec::engine
