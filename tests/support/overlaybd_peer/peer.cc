// What the libraries of the project containerd/overlaybd make of the same input: built by
// tests/support/overlaybd_peer/build against a checkout of that project, never as a part of dsec.
//
//   peer create DATA INDEX SIZE UUID PARENT    two empty files of a writable layer
//   peer apply DATA INDEX OPERATIONS           a line each: "w SECTOR FILE", "d SECTOR COUNT"
//   peer commit DATA INDEX OUT UUID MESSAGE none|lz4|zstd BLOCK_SIZE bare|tar
//   peer seal DATA INDEX
//   peer merge OUT LAYER...                    lowest first
//   peer cat OUT LAYER... [-- DATA INDEX]      the device, lowest first
#include <fcntl.h>
#include <photon/fs/localfs.h>
#include <photon/thread/thread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "lsmt/file.h"
#include "tar/tar_file.h"
#include "zfile/zfile.h"

using namespace photon::fs;

// Of all that they start, compressing in several threads alone would need what this leaves out.
namespace photon {
int init(uint64_t, uint64_t) { std::abort(); }
int fini() { std::abort(); }
}  // namespace photon

namespace {

template <typename T>
T* need(T* object, const std::string& what) {
  if (object) return object;
  std::fprintf(stderr, "peer: %s failed: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

void need(bool condition, const std::string& what) {
  if (!condition) need(static_cast<int*>(nullptr), what);
}

IFile* open(const std::string& path, int flags) {
  return need(open_localfile_adaptor(path.c_str(), flags, 0644, 0), "open " + path);
}

// As the image service of the project opens a layer.
IFile* open_sealed(const std::string& path) {
  IFile* file = need(new_tar_file_adaptor(open(path, O_RDONLY)), "look for a tar archive");
  if (ZFile::is_zfile(file) == 1) file = need(ZFile::zfile_open_ro(file, false, true), "open a ZFile");
  return file;
}

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void create(const std::vector<std::string>& args) {
  LSMT::LayerInfo info(open(args[0], O_RDWR | O_CREAT | O_EXCL), open(args[1], O_RDWR | O_CREAT | O_EXCL));
  info.virtual_size = std::stoull(args[2]);
  info.uuid.parse(args[3].c_str(), args[3].size());
  info.parent_uuid.parse(args[4].c_str(), args[4].size());
  delete need(LSMT::create_file_rw(info, true), "create");
}

void apply(const std::vector<std::string>& args) {
  LSMT::IFileRW* layer = need(LSMT::open_file_rw(open(args[0], O_RDWR), open(args[1], O_RDWR), true), "open");
  std::ifstream operations(args[2]);
  for (std::string line; std::getline(operations, line);) {
    std::istringstream words(line);
    std::string kind, what;
    long long sector = 0;
    words >> kind >> sector >> what;
    if (kind == "w") {
      std::string bytes = read_whole(what);
      need(layer->pwrite(bytes.data(), bytes.size(), sector * 512) == static_cast<ssize_t>(bytes.size()), line);
    } else {
      need(layer->fallocate(3, sector * 512, std::stoll(what) * 512) == 0, line);
    }
  }
  delete layer;
}

void commit(const std::vector<std::string>& args) {
  LSMT::IFileRW* layer = need(LSMT::open_file_rw(open(args[0], O_RDWR), open(args[1], O_RDONLY), true), "open");
  const bool tar = args[7] == "tar";
  IFileSystem* files = need(new_localfs_adaptor(), "files");
  if (tar) files = new_tar_fs_adaptor(files);
  IFile* file = need(files->open(args[2].c_str(), O_RDWR | O_CREAT | O_EXCL, 0644), "open " + args[2]);
  IFile* out = file;
  ZFile::CompressOptions options(args[5] == "zstd" ? ZFile::CompressOptions::ZSTD : ZFile::CompressOptions::LZ4,
                                 static_cast<uint32_t>(std::stoul(args[6])), 1);
  ZFile::CompressArgs zfile(options);
  zfile.overwrite_header = true;
  if (args[5] != "none") out = need(ZFile::new_zfile_builder(file, &zfile, false), "compress");
  LSMT::CommitArgs wanted(out);
  std::string message = args[4];
  std::memset(wanted.uuid.data, 0, UUID::String::LEN);
  std::memset(wanted.parent_uuid.data, 0, UUID::String::LEN);
  std::memcpy(wanted.uuid.data, args[3].data(), std::min<size_t>(args[3].size(), 36));
  if (!message.empty()) wanted.user_tag = &message[0];
  need(layer->commit(wanted) == 0, "commit");
  need(out->close() == 0, "close");
  if (out != file) file->close();
}

void seal(const std::vector<std::string>& args) {
  LSMT::IFileRW* layer = need(LSMT::open_file_rw(open(args[0], O_RDWR), open(args[1], O_RDWR), true), "open");
  need(layer->close_seal() == 0, "seal");
}

void merge(const std::vector<std::string>& args) {
  std::vector<IFile*> layers;
  for (size_t i = 1; i < args.size(); ++i) layers.push_back(open_sealed(args[i]));
  LSMT::CommitArgs wanted(open(args[0], O_RDWR | O_CREAT | O_EXCL));
  std::memset(wanted.uuid.data, 0, UUID::String::LEN);
  std::memset(wanted.parent_uuid.data, 0, UUID::String::LEN);
  need(LSMT::merge_files_ro(layers.data(), layers.size(), wanted) == 0, "merge");
}

void cat(const std::vector<std::string>& args) {
  std::vector<IFile*> layers;
  size_t i = 1;
  for (; i < args.size() && args[i] != "--"; ++i) layers.push_back(open_sealed(args[i]));
  LSMT::IFileRO* device = layers.empty() ? nullptr : need(LSMT::open_files_ro(layers.data(), layers.size()), "stack");
  if (i < args.size()) {
    LSMT::IFileRW* top =
        need(LSMT::open_file_rw(open(args[i + 1], O_RDWR), open(args[i + 2], O_RDWR), false), "open the top");
    device = need(LSMT::stack_files(top, device, false, false), "put the top on the stack");
  }
  struct stat facts;
  need(device->fstat(&facts) == 0, "stat");
  IFile* out = open(args[0], O_RDWR | O_CREAT | O_TRUNC);
  std::string buffer(1 << 20, '\0');
  for (off_t at = 0; at < facts.st_size; at += static_cast<off_t>(buffer.size())) {
    const size_t size = std::min<size_t>(buffer.size(), facts.st_size - at);
    need(device->pread(&buffer[0], size, at) == static_cast<ssize_t>(size), "read");
    need(out->pwrite(buffer.data(), size, at) == static_cast<ssize_t>(size), "write");
  }
}

}  // namespace

int main(int argc, char** argv) {
  need(argc > 2, "use");
  log_output_level = ALOG_FATAL;
  photon::vcpu_init();
  const std::string verb = argv[1];
  const std::vector<std::string> args(argv + 2, argv + argc);
  if (verb == "create") create(args);
  if (verb == "apply") apply(args);
  if (verb == "commit") commit(args);
  if (verb == "seal") seal(args);
  if (verb == "merge") merge(args);
  if (verb == "cat") cat(args);
  std::fflush(stdout);
  _exit(0);
}
