#pragma once

#include "registry/directory/registry_root.h"
#include "registry/layout/notes.h"

namespace dsec::registry {

/// The notes of a registry in a directory, which must outlive them.
class DirectoryNotes : public Notes {
 public:
  explicit DirectoryNotes(const RegistryRoot& root) : root_(root) {}

  std::vector<std::string> names(std::string_view folder) const override;
  std::optional<std::string> read(const std::string& name) const override;
  void write(const std::string& name, const std::string& text, const std::string& author) const override;
  void remove(const std::string& name) const override;
  std::optional<std::chrono::system_clock::time_point> written(const std::string& name) const override;

 private:
  const RegistryRoot& root_;
};

}  // namespace dsec::registry
