#include <fcntl.h>

#include "core/base/error.h"
#include "runners/container/beneath.h"
#include "runners/container/files.h"
#include "runners/container/sandbox_thread.h"
#include "runners/container/tree_packer.h"

namespace dsec::runners {

void copy_out(const SandboxFiles& files, const std::string& path, int fd, const PackOptions& options) {
  attempt("cannot pack " + quote(path), [&] {
    as_sandbox_root(files.ids, [&] {
      const std::vector<std::string> parts = path_components(path);
      const bool whole = parts.empty() || parts.back() == ".." || path.ends_with('/') || path.ends_with("/.");
      // The name stays a name when it is opened: only what leads to it is resolved.
      std::string parent_path = "/";
      for (std::size_t i = 0; i + (whole ? 0 : 1) < parts.size(); ++i) parent_path += parts[i] + '/';
      const UniqueFd parent = open_in_root(files.root, parent_path, O_PATH | O_DIRECTORY);
      if (!parent) throw system_error("open " + quote(parent_path));
      TreePacker packer(files.ids, fd, options.owner);
      const std::string name = whole ? "." : parts.back();
      packer.add(parent.get(), name, options.name.empty() ? name : options.name, 0);
      packer.finish();
    });
  });
}

}  // namespace dsec::runners
