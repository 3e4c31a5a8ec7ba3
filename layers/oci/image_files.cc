#include "layers/oci/image_files.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "core/base/error.h"
#include "layers/archive/decompress.h"
#include "layers/archive/refusal.h"
#include "layers/archive/tar_reader.h"
#include "layers/archive/tar_source.h"

namespace dsec::layers {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxLinks = 40;

std::deque<std::string> parts_of(std::string_view path) {
  std::deque<std::string> parts;
  while (!path.empty()) {
    const std::size_t slash = std::min(path.find('/'), path.size());
    if (slash > 0) parts.emplace_back(path.substr(0, slash));
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return parts;
}

}  // namespace

std::optional<FileSpan> ImageFiles::blob(BlobUse, const Digest& digest, std::uint64_t) const {
  return find("blobs/sha256/" + digest.hex());
}

std::optional<FileSpan> DirectoryFiles::find(const std::string& path) const {
  std::error_code error;
  const fs::file_status status = fs::status(root_ / path, error);
  if (!fs::exists(status)) return std::nullopt;
  if (!fs::is_regular_file(status))
    throw refusal(Refusal::BlobMissing, quote((root_ / path).native()) + " is no regular file");
  return FileSpan::open(root_ / path);
}

ArchiveFiles::ArchiveFiles(const fs::path& archive, const fs::path& spool, const InputLimits& limits) {
  attempt("cannot read archive " + quote(archive.native()), [&] {
    FileSpan whole = FileSpan::open(archive);
    {
      SpanStream head(whole);
      if (packing_of(head.next()) != Packing::None) whole = spool_unpacked(whole, spool, limits);
    }
    InputBudget budget(limits);
    budget.begin_archive(whole.size);
    SpanStream stream(whole);
    TarReader reader(stream, budget, TarReader::Rules::Runtimes);
    while (const auto member = reader.next()) {
      const Entry& entry = member->entry;
      const std::string path = normal_path(entry.path, limits);
      files_.erase(path);
      links_.erase(path);
      switch (entry.type) {
        case EntryType::File:
          if (entry.size == 0)
            files_[path] = {whole.file, 0, 0};
          else if (member->segments.size() == 1 && member->segments[0].size == entry.size)
            files_[path] = {whole.file, member->segments[0].offset, entry.size};
          else
            files_[path] = spool_file(whole, *member, spool);
          break;
        case EntryType::HardLink:
          links_[path] = "/" + normal_path(entry.target, limits);
          break;
        case EntryType::Symlink:
          links_[path] = entry.target;
          break;
        default:
          break;
      }
    }
  });
}

std::string ArchiveFiles::resolve(const std::string& path) const {
  std::deque<std::string> todo = parts_of(path);
  std::vector<std::string> done;
  for (int links = 0; !todo.empty();) {
    const std::string part = std::move(todo.front());
    todo.pop_front();
    if (part == ".") continue;
    if (part == "..") {
      if (done.empty())
        throw refusal(Refusal::PathEscapesRoot,
                      "file " + quote(path) + " of the image archive is a link that leads out of it");
      done.pop_back();
      continue;
    }
    std::string here;
    for (const std::string& name : done) here += name + "/";
    const auto link = links_.find(here + part);
    if (link == links_.end()) {
      done.push_back(part);
      continue;
    }
    if (++links > kMaxLinks)
      throw refusal(Refusal::NotRepresentable,
                    "file " + quote(path) + " of the image archive leads through too many links");
    if (link->second.starts_with('/')) done.clear();
    std::deque<std::string> target = parts_of(link->second);
    todo.insert(todo.begin(), target.begin(), target.end());
  }
  std::string out;
  for (const std::string& name : done) out += (out.empty() ? "" : "/") + name;
  return out;
}

std::optional<FileSpan> ArchiveFiles::find(const std::string& path) const {
  const auto found = files_.find(resolve(path));
  if (found == files_.end()) return std::nullopt;
  return found->second;
}

}  // namespace dsec::layers
