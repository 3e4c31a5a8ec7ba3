#include "layers/git/git_objects.h"

#include <git2.h>
#include <git2/sys/repository.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "layers/archive/refusal.h"
#include "layers/git/loose_objects.h"

namespace dsec::layers {
namespace {
namespace fs = std::filesystem;

constexpr int kPacksFirst = 2, kThenLoose = 1;

// The refs in the one file that needs no folder per component.
std::string packed_refs(const std::map<std::string, ObjectId>& refs) {
  std::string text = "# pack-refs with: sorted\n";
  for (const auto& [name, id] : refs) text += id.hex() + " " + name + "\n";
  return text;
}

// The value of the header line that begins with `key`, from the front of `text`; empty when the next line is another.
std::optional<std::string_view> take_header(std::string_view& text, std::string_view key) {
  if (!text.starts_with(key) || text.size() <= key.size() || text[key.size()] != ' ') return std::nullopt;
  const auto end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view value = text.substr(key.size() + 1, end - key.size() - 1);
  text.remove_prefix(end + 1);
  return value;
}

std::int64_t committer_time(std::string_view headers) {
  const auto line = headers.find("\ncommitter ");
  if (line == std::string_view::npos) return 0;
  std::string_view who = headers.substr(line + 1);
  who = who.substr(0, who.find('\n'));
  const auto bracket = who.rfind('>');
  if (bracket == std::string_view::npos) return 0;
  who = who.substr(bracket + 1);
  who.remove_prefix(std::min(who.find_first_not_of(' '), who.size()));
  std::int64_t seconds = 0;
  std::from_chars(who.data(), who.data() + who.size(), seconds);
  return seconds;
}

}  // namespace

std::string_view GitBlob::bytes() const {
  return {static_cast<const char*>(git_odb_object_data(object_.get())), git_odb_object_size(object_.get())};
}

GitObjects::GitObjects(const RepositoryFiles& files, const fs::path& scratch) : folder_(scratch) {
  const std::string place = (folder_.path() / "view").native();
  git_repository_init_options options;
  check_git(git_repository_init_options_init(&options, GIT_REPOSITORY_INIT_OPTIONS_VERSION), "prepare a repository");
  options.flags = GIT_REPOSITORY_INIT_BARE | GIT_REPOSITORY_INIT_MKDIR | GIT_REPOSITORY_INIT_NO_REINIT;
  git_repository* repository = nullptr;
  check_git(git_repository_init_ext(&repository, place.c_str(), &options), "make a repository in " + quote(place));
  repository_.reset(repository);

  git_odb* objects = nullptr;
  check_git(git_odb_new(&objects), "prepare to read objects");
  objects_.reset(objects);
  for (const auto& folder : files.object_dirs) {
    git_odb_backend* packs = nullptr;
    check_git(git_odb_backend_pack(&packs, folder.c_str()), "open the packs in " + quote(folder.native()));
    check_git(git_odb_add_backend(objects, packs, kPacksFirst), "read the packs in " + quote(folder.native()));
    check_git(git_odb_add_backend(objects, make_loose_backend(folder), kThenLoose),
              "read the objects in " + quote(folder.native()));
  }
  check_git(git_repository_set_odb(repository, objects), "lend the objects to a repository");

  write_file_atomic(fs::path(place) / "packed-refs", packed_refs(files.refs));
  const bool id = ObjectId::valid_hex(files.head);
  if (id || files.head.starts_with("refs/"))
    write_file_atomic(fs::path(place) / "HEAD", (id ? "" : "ref: ") + files.head + "\n");

  if (!files.missing_alternates.empty()) {
    absence_ =
        "the repository borrows objects from " + quote(files.missing_alternates.front()) + ", which is not there";
    remedy_ = "git repack -a -d in it while the lender is in its place";
  } else if (files.partial) {
    absence_ = "the repository is a partial clone, which fetches objects when git needs them; dsec does not";
    remedy_ = "git fetch --refetch --no-filter in it, which makes it whole";
  } else if (!files.shallow.empty()) {
    absence_ = "the repository is a shallow clone";
    remedy_ = "git fetch --unshallow in it, which makes it whole";
  }
}

Error GitObjects::missing(const ObjectId& id, const std::string& what) const {
  const std::string cause = libgit_error("read the " + what + " " + id.hex()).message();
  Error error = refusal(has(id) ? Refusal::Damaged : Refusal::BlobMissing, cause);
  if (!absence_.empty()) {
    error = refusal(Refusal::BlobMissing, absence_).context("the " + what + " " + id.hex() + " is missing");
    error.hint(remedy_);
  }
  return error;
}

ObjectId GitObjects::commit_of(const std::string& revision) const {
  git_object* found = nullptr;
  // "@" is HEAD for git in every place, for libgit2 only alone.
  const bool at = revision.starts_with('@') && (revision.size() == 1 || revision[1] == '~' || revision[1] == '^');
  const std::string name = at ? "HEAD" + revision.substr(1) : revision;
  if (git_revparse_single(&found, repository_.get(), name.c_str()) < 0) {
    const bool many =
        git_error_last() && std::string_view(git_error_last()->message).find("ambiguous") != std::string_view::npos;
    Error error = refusal(Refusal::ReferenceMissing, libgit_error("find the revision " + quote(revision)).message());
    if (many) {
      error.hint("more digits of the id");
    } else if (!absence_.empty()) {
      error.hint(remedy_ + " (" + absence_ + ")");
    } else {
      error.hint("git log or git tag in the repository, which show what there is");
    }
    throw Error(error);
  }
  const GitPtr<git_object> object(found);
  git_object* commit = nullptr;
  if (git_object_peel(&commit, found, GIT_OBJECT_COMMIT) < 0) {
    ObjectId named = ObjectId::of(*git_object_id(found));
    while (kind(named) == "tag") named = tag_target(named);
    throw refusal(Refusal::ReferenceMissing, quote(revision) + " names a " + std::string(kind(named)) + ", no commit")
        .hint("git log or git tag in the repository, which show what there is");
  }
  const GitPtr<git_object> peeled(commit);
  return ObjectId::of(*git_object_id(commit));
}

bool GitObjects::has(const ObjectId& id) const {
  const git_oid native = id.native();
  return git_odb_exists(objects_.get(), &native) == 1;
}

std::string_view GitObjects::kind(const ObjectId& id) const {
  std::size_t size = 0;
  git_object_t type = GIT_OBJECT_INVALID;
  const git_oid native = id.native();
  if (git_odb_read_header(&size, &type, objects_.get(), &native) < 0) throw missing(id, "object");
  return git_object_type2string(type);
}

std::uint64_t GitObjects::size(const ObjectId& id) const {
  std::size_t size = 0;
  git_object_t type = GIT_OBJECT_INVALID;
  const git_oid native = id.native();
  if (git_odb_read_header(&size, &type, objects_.get(), &native) < 0) throw missing(id, "object");
  return size;
}

GitPtr<git_odb_object> GitObjects::read(const ObjectId& id, int type, const char* what) const {
  git_odb_object* object = nullptr;
  const git_oid native = id.native();
  if (git_odb_read(&object, objects_.get(), &native) < 0) throw missing(id, what);
  GitPtr<git_odb_object> owned(object);
  if (git_odb_object_type(object) != type)
    throw refusal(Refusal::Damaged, "the object " + id.hex() + " is a " +
                                        git_object_type2string(git_odb_object_type(object)) + " where a " + what +
                                        " is expected");
  return owned;
}

GitBlob GitObjects::blob(const ObjectId& id) const { return GitBlob(read(id, GIT_OBJECT_BLOB, "blob")); }

GitCommit GitObjects::commit(const ObjectId& id) const {
  const GitBlob raw(read(id, GIT_OBJECT_COMMIT, "commit"));
  std::string_view text = raw.bytes();
  const std::string_view headers = text.substr(0, text.find("\n\n"));
  GitCommit commit;
  const auto tree = take_header(text, "tree");
  if (!tree || !ObjectId::valid_hex(*tree))
    throw refusal(Refusal::Damaged, "the commit " + id.hex() + " names no tree");
  commit.tree = ObjectId::from_hex(*tree);
  while (const auto parent = take_header(text, "parent")) {
    if (!ObjectId::valid_hex(*parent))
      throw refusal(Refusal::Damaged, "the commit " + id.hex() + " has a broken parent line");
    commit.parents.push_back(ObjectId::from_hex(*parent));
  }
  commit.time = committer_time(headers);
  return commit;
}

std::vector<GitTreeItem> GitObjects::tree(const ObjectId& id) const {
  const GitBlob raw(read(id, GIT_OBJECT_TREE, "tree"));
  std::string_view text = raw.bytes();
  const auto broken = [&] { return refusal(Refusal::Damaged, "the tree " + id.hex() + " is malformed"); };
  std::vector<GitTreeItem> items;
  while (!text.empty()) {  // "MODE NAME\0ID", mode in octal
    const auto space = text.find(' ');
    const auto end = text.find('\0');
    if (space == std::string_view::npos || end == std::string_view::npos || space > end) throw broken();
    GitTreeItem item;
    const auto [rest, fault] = std::from_chars(text.data(), text.data() + space, item.mode, 8);
    if (fault != std::errc() || rest != text.data() + space || text.size() - end - 1 < ObjectId::kSize) throw broken();
    item.name = text.substr(space + 1, end - space - 1);
    item.id = ObjectId::raw(text.data() + end + 1);
    text.remove_prefix(end + 1 + ObjectId::kSize);
    items.push_back(std::move(item));
  }
  return items;
}

ObjectId GitObjects::tag_target(const ObjectId& id) const {
  const GitBlob raw(read(id, GIT_OBJECT_TAG, "tag"));
  std::string_view text = raw.bytes();
  const auto target = take_header(text, "object");
  if (!target || !ObjectId::valid_hex(*target))
    throw refusal(Refusal::Damaged, "the tag " + id.hex() + " names no object");
  return ObjectId::from_hex(*target);
}

ObjectId GitObjects::hash_blob(std::string_view bytes) {
  git_oid id;
  check_git(git_odb_hash(&id, bytes.data(), bytes.size(), GIT_OBJECT_BLOB), "hash a file");
  return ObjectId::of(id);
}

}  // namespace dsec::layers
