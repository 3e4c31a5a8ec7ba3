#include "registry/directory/catalogue_file.h"

#include "core/base/error.h"
#include "core/base/files.h"
#include "registry/directory/new_file.h"
#include "registry/layout/catalogue.h"
#include "registry/layout/layout.h"

namespace dsec::registry {
namespace {

// Whoever goes on changing the directory after so many rounds writes the catalogue, too.
constexpr int kMostRounds = 100;

std::string present(const RegistryRoot& root) {
  try {
    return root.read_file(std::string(kCatalogue), kLargestCatalogue).value_or("");
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

bool catalogue_is_current(const RegistryRoot& root) {
  const std::vector<std::string> names = names_for_catalogue(root);
  const std::string text = present(root);
  return text.empty() ? names.empty() : text == catalogue_text(names);
}

void write_catalogue(const RegistryRoot& root, const std::string& publisher) {
  for (int round = 0; round < kMostRounds; ++round) {
    const std::string wanted = catalogue_text(names_for_catalogue(root));
    if (present(root) == wanted) return;
    const UniqueFd parent = root.make_parent(std::string(kCatalogue));
    NewFile file(parent.get(), publisher);
    write_all(file.fd(), wanted);
    file.replace(std::string(kCatalogue));
  }
}

}  // namespace dsec::registry
