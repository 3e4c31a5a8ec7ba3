#include "layers/archive/tar_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/units.h"
#include "layers/archive/content_reader.h"
#include "layers/archive/decompress.h"
#include "layers/archive/refusal.h"

namespace dsec::layers {

// O_TMPFILE would be shorter, but network filesystems do not have it.
UniqueFd unlinked_file(const std::filesystem::path& directory) {
  const TempFile file(directory);
  return open_file(file.path(), O_RDWR);
}

FileSpan spool(int fd, const std::filesystem::path& directory, std::uint64_t limit) {
  UniqueFd file = unlinked_file(directory);
  const auto buffer = std::make_unique<char[]>(1 << 20);
  std::uint64_t size = 0;
  for (;;) {
    const ssize_t got = ::read(fd, buffer.get(), 1 << 20);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read standard input");
    if (got == 0) break;
    size += static_cast<std::uint64_t>(got);
    if (size > limit)
      throw refusal(Refusal::SizeLimit, "standard input has more than " + format_size(limit))
          .hint("allow more with --max-unpacked");
    write_all(file.get(), {buffer.get(), static_cast<std::size_t>(got)});
  }
  return {std::make_shared<const UniqueFd>(std::move(file)), 0, size};
}

FileSpan spool_file(const FileSpan& archive, const TarMember& member, const std::filesystem::path& directory) {
  struct Sink : TreeSink {
    UniqueFd file;
    explicit Sink(UniqueFd fd) : file(std::move(fd)) {}
    void entry(const Entry&) override {}
    void data(std::string_view bytes) override { write_all(file.get(), bytes); }
  } sink(unlinked_file(directory));
  ContentReader(archive).copy(member.segments, member.entry.size, sink);
  return {std::make_shared<const UniqueFd>(std::move(sink.file)), 0, member.entry.size};
}

FileSpan spool_unpacked(const FileSpan& packed, const std::filesystem::path& directory, const InputLimits& limits) {
  UniqueFd file = unlinked_file(directory);
  InputBudget budget(limits);
  budget.begin_archive(packed.size);
  SpanStream span(packed);
  UnpackedStream unpacked(span);
  std::uint64_t size = 0;
  for (std::string_view piece = unpacked.next(); !piece.empty(); piece = unpacked.next()) {
    size += piece.size();
    budget.unpacked(size);
    write_all(file.get(), piece);
  }
  return {std::make_shared<const UniqueFd>(std::move(file)), 0, size};
}

SourceFacts TarSource::examine(const SourceOptions& options, Progress& progress) {
  const bool standard_input = file_ == "-";
  const FileSpan archive =
      standard_input ? spool(STDIN_FILENO, spool_, options.limits.unpacked_bytes) : FileSpan::open(file_);
  stack_ = std::make_unique<ArchiveStack>(LayerTree::Markers::Ordinary, options);
  const std::string name = standard_input ? "standard input" : "archive " + quote(file_);
  const Digest content = stack_->add(archive, {name, {}, {}}, progress);
  SourceFacts facts;
  facts.images = stack_->finish();
  facts.provenance.source = "tar";
  facts.provenance.inputs["content"] = content.str();
  facts.identity = content;
  facts.warnings = stack_->warnings();
  return facts;
}

void TarSource::emit(std::size_t image, TreeSink& sink) { stack_->emit(image, sink); }

}  // namespace dsec::layers
