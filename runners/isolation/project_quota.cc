#include "runners/isolation/project_quota.h"

#include <fcntl.h>
#include <linux/dqblk_xfs.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::runners {
namespace {

/// quotactl(2) counts in these whatever the filesystem's blocks are.
constexpr std::uint64_t kQuotaBlock = 1024;

long quota_call(int fd, unsigned command, std::uint32_t id, void* data) {
  return ::syscall(SYS_quotactl_fd, fd, QCMD(command, PRJQUOTA), id, data);
}

UniqueFd open_any(const std::filesystem::path& path) { return open_file(path, O_RDONLY | O_DIRECTORY); }

}  // namespace

bool enforces_project_quotas(const std::filesystem::path& path) {
  const UniqueFd directory = open_any(path);
  fs_quota_statv state{};
  state.qs_version = FS_QSTATV_VERSION1;
  if (quota_call(directory.get(), Q_XGETQSTATV, 0, &state) != 0) return false;
  return (state.qs_flags & FS_QUOTA_PDQ_ENFD) != 0;
}

void join_project(const std::filesystem::path& directory, std::uint32_t project) {
  const UniqueFd fd = open_any(directory);
  fsxattr attributes{};
  if (::ioctl(fd.get(), FS_IOC_FSGETXATTR, &attributes) != 0)
    throw system_error("read the project of " + quote(directory.string()));
  attributes.fsx_projid = project;
  attributes.fsx_xflags |= FS_XFLAG_PROJINHERIT;
  if (::ioctl(fd.get(), FS_IOC_FSSETXATTR, &attributes) != 0)
    throw system_error("set the project of " + quote(directory.string()));
}

ProjectUse project_use(const std::filesystem::path& path, std::uint32_t project) {
  if_dqblk block{};
  if (quota_call(open_any(path).get(), Q_GETQUOTA, project, &block) != 0) {
    // Nobody has used the project yet.
    if (errno == ENOENT || errno == ESRCH) return {};
    throw system_error("read the quota of a project on the filesystem of " + quote(path.string()));
  }
  return {.bytes = block.dqb_curspace, .limit = block.dqb_bhardlimit * kQuotaBlock};
}

void limit_project(const std::filesystem::path& path, std::uint32_t project, std::uint64_t bytes) {
  if_dqblk block{};
  block.dqb_valid = QIF_BLIMITS;
  block.dqb_bhardlimit = block.dqb_bsoftlimit = (bytes + kQuotaBlock - 1) / kQuotaBlock;
  if (quota_call(open_any(path).get(), Q_SETQUOTA, project, &block) != 0)
    throw system_error("set the quota of a project on the filesystem of " + quote(path.string()));
}

}  // namespace dsec::runners
