#include "registry/directory/directory_notes.h"

#include "core/base/files.h"
#include "registry/directory/new_file.h"
#include "registry/layout/layout.h"

namespace dsec::registry {

std::vector<std::string> DirectoryNotes::names(std::string_view folder) const {
  std::vector<std::string> names;
  for (const std::string& file : root_.list(std::string(folder))) names.push_back(std::string(folder) + "/" + file);
  return names;
}

std::optional<std::string> DirectoryNotes::read(const std::string& name) const {
  return root_.read_file(name, kLargestNote);
}

void DirectoryNotes::write(const std::string& name, const std::string& text, const std::string& author) const {
  const UniqueFd parent = root_.make_parent(name);
  NewFile file(parent.get(), author);
  write_all(file.fd(), text);
  file.replace(last_part(name));
}

void DirectoryNotes::remove(const std::string& name) const { root_.remove(name); }

std::optional<std::chrono::system_clock::time_point> DirectoryNotes::written(const std::string& name) const {
  const auto status = root_.look(name);
  if (!status) return std::nullopt;
  return std::chrono::system_clock::from_time_t(status->st_mtime);
}

}  // namespace dsec::registry
