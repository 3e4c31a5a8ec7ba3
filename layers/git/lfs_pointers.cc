#include "layers/git/lfs_pointers.h"

#include "core/base/error.h"
#include "layers/git/checkout_filter.h"

namespace dsec::layers {
namespace {

// The specification of pointers: the first line, and the most that one has.
constexpr std::string_view kFirstLine = "version https://git-lfs.github.com/spec/v1\n";
constexpr std::uint64_t kMostBytes = 1024;

}  // namespace

std::string lfs_warning(const GitObjects& objects, const GitTree& tree) {
  if (!tree.totals().attributes) return "";
  const CheckoutFilter filter(objects, tree);
  if (!filter.has_lfs()) return "";
  std::uint64_t count = 0;
  std::string first;
  tree.walk([&](const GitFile& file) {
    if (file.kind != GitFileKind::Regular && file.kind != GitFileKind::Executable) return;
    if (!filter.is_lfs(file.path) || objects.size(file.id) >= kMostBytes) return;
    if (objects.blob(file.id).bytes().starts_with(kFirstLine) && count++ == 0) first = file.path;
  });
  if (count == 0) return "";
  if (count == 1) return quote(first) + " is a pointer of Git LFS and stays one: its content is not in git";
  return std::to_string(count) + " files (" + quote(first) +
         " and others) are pointers of Git LFS and stay so: their contents are not in git";
}

}  // namespace dsec::layers
