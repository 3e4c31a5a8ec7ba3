#include "layers/git/libgit.h"

#include <git2.h>

namespace dsec::layers {

void GitFree::operator()(git_config* config) const noexcept { git_config_free(config); }
void GitFree::operator()(git_index* index) const noexcept { git_index_free(index); }
void GitFree::operator()(git_object* object) const noexcept { git_object_free(object); }
void GitFree::operator()(git_odb* odb) const noexcept { git_odb_free(odb); }
void GitFree::operator()(git_odb_object* object) const noexcept { git_odb_object_free(object); }
void GitFree::operator()(git_packbuilder* builder) const noexcept { git_packbuilder_free(builder); }
void GitFree::operator()(git_remote* remote) const noexcept { git_remote_free(remote); }
void GitFree::operator()(git_repository* repository) const noexcept { git_repository_free(repository); }

ObjectId ObjectId::of(const git_oid& id) { return raw(id.id); }

ObjectId ObjectId::raw(const void* bytes) {
  ObjectId id;
  std::memcpy(id.bytes.data(), bytes, kSize);
  return id;
}

bool ObjectId::valid_hex(std::string_view hex) {
  return hex.size() == 2 * kSize && hex.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

ObjectId ObjectId::from_hex(std::string_view hex) {
  const auto digit = [](char c) { return static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10); };
  ObjectId id;
  for (std::size_t i = 0; i < kSize; ++i)
    id.bytes[i] = static_cast<std::uint8_t>(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
  return id;
}

git_oid ObjectId::native() const {
  git_oid id{};
  std::memcpy(id.id, bytes.data(), kSize);
  return id;
}

std::string ObjectId::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

void start_libgit2() {
  static const bool started = [] {
    check_git(git_libgit2_init(), "start libgit2");
    for (const int level :
         {GIT_CONFIG_LEVEL_PROGRAMDATA, GIT_CONFIG_LEVEL_SYSTEM, GIT_CONFIG_LEVEL_XDG, GIT_CONFIG_LEVEL_GLOBAL})
      check_git(git_libgit2_opts(GIT_OPT_SET_SEARCH_PATH, level, ""), "cut libgit2 off from configuration files");
    check_git(git_libgit2_opts(GIT_OPT_SET_TEMPLATE_PATH, ""), "cut libgit2 off from template folders");
    // Every object that is read is hashed: a repository is input like any other.
    check_git(git_libgit2_opts(GIT_OPT_ENABLE_STRICT_HASH_VERIFICATION, 1), "make libgit2 verify objects");
    return true;
  }();
  (void)started;
}

Error libgit_error(std::string attempt) {
  const git_error* last = git_error_last();
  const std::string cause = last && last->message ? last->message : "libgit2 gave no reason";
  return failure(attempt + ": " + cause);
}

void check_git(int code, std::string_view attempt) {
  if (code < 0) throw libgit_error(std::string(attempt));
}

}  // namespace dsec::layers
