#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/engine/trajectory.h"

namespace dsec::engine {

/// Hides the values of variables whose name contains one of some words, in any case: where they are set, and wherever a
/// value of at least 6 bytes stands in anything else, such as output that shows it.
class SecretMask {
 public:
  enum class Form {
    Stars,       ///< eight stars, whatever stood there: for people
    SameLength,  ///< as many 'X' as there were bytes: sizes and places stay true, and a shell takes it for a word
  };
  static const std::vector<std::string>& default_words();
  explicit SecretMask(std::vector<std::string> words = default_words(), Form form = Form::Stars);

  /// The same words and values in another form.
  SecretMask with(Form form) const;

  bool is_secret(std::string_view variable) const;
  /// Takes note of a list of "NAME=value".
  void learn(const std::vector<std::string>& env);
  /// Of everything that a trajectory sets: variables of the sandbox and of commands, and NAME=value in their words.
  void learn(const Trajectory& trajectory);

  std::string text(std::string text) const;
  /// All strings in it; bytes in base64 too.
  Json json(const Json& value) const;
  /// Request, result, and what of the output stands in the log; output in files is up to the caller.
  Operation operation(Operation operation) const;
  TrajectoryHeader header(TrajectoryHeader header) const;

  /// Values that are looked for, the longest first.
  const std::vector<std::string>& values() const noexcept { return values_; }

 private:
  std::string variable(const std::string& entry) const;
  std::string instead_of(std::size_t size) const;
  void learn_words(std::string_view text);
  void learn_value(std::string_view value);
  std::vector<std::string> words_, values_;
  Form form_;
};

/// Finds where secrets stand in a stream that comes piece by piece; one that lies across two pieces is found as well.
class SecretScan {
 public:
  /// Half-open, in bytes from the beginning of the stream.
  struct Place {
    std::uint64_t begin, end;
    bool operator==(const Place&) const = default;
  };

  /// `mask` must outlive it.
  explicit SecretScan(const SecretMask& mask) : mask_(&mask) {}
  void push(std::string_view data);
  /// The stream is missing bytes here: the beginning of a secret before it and the end of one after it count as well.
  void gap();
  /// In order, apart from each other.
  std::vector<Place> finish();

 private:
  void search();
  const SecretMask* mask_;
  std::string window_;          ///< the last bytes, in which a secret may have begun
  std::uint64_t at_ = 0;        ///< where the window begins
  std::uint64_t searched_ = 0;  ///< what ends here or before was found
  bool after_gap_ = false;      ///< the window begins behind a gap
  std::vector<Place> places_;
};

/// Replaces what of `data`, which begins at byte `at` of the stream, lies in `places`.
void blank(std::string& data, std::uint64_t at, const std::vector<SecretScan::Place>& places);

}  // namespace dsec::engine
