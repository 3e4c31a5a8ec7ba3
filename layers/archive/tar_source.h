#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "layers/archive/archive_source.h"
#include "layers/source.h"

namespace dsec::layers {

/// `tar:FILE` or `tar:-`: a plain archive, packed or not, in which names that look like deletion markers are ordinary.
class TarSource : public Source {
 public:
  /// "-" is standard input, which is kept in an unlinked file in `spool` while it is needed.
  TarSource(std::string file, std::filesystem::path spool) : file_(std::move(file)), spool_(std::move(spool)) {}
  SourceFacts examine(const SourceOptions& options, Progress& progress) override;
  void emit(std::size_t image, TreeSink& sink) override;

 private:
  std::string file_;
  std::filesystem::path spool_;
  std::unique_ptr<ArchiveStack> stack_;
};

/// A file in `directory` that nobody else can open, for reading and writing.
UniqueFd unlinked_file(const std::filesystem::path& directory);
/// Everything that can be read from `fd`, in an unlinked file in `directory`; throws Error (size-limit) beyond `limit`.
FileSpan spool(int fd, const std::filesystem::path& directory, std::uint64_t limit);
/// The content of a file of `archive`, holes included, as a file of its own in the same way.
FileSpan spool_file(const FileSpan& archive, const TarMember& member, const std::filesystem::path& directory);
/// The same of what `packed` unpacks to.
FileSpan spool_unpacked(const FileSpan& packed, const std::filesystem::path& directory, const InputLimits& limits);

}  // namespace dsec::layers
