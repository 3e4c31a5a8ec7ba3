#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "layers/source.h"

namespace dsec::layers {

/// What becomes of an extended attribute of an input. Layers keep what belongs to the file: user.*,
/// security.capability and POSIX ACLs. What belongs to a host (labels, signatures, trusted.*) is left out, and above
/// all the attributes that overlayfs would act on.
enum class XattrFate { Keep, Drop };
XattrFate fate_of_xattr(std::string_view name);

/// Whether Linux lets an entry of `type` have the attribute at all: user.* only files and directories, ACLs anything
/// but a symlink, and a default ACL only a directory.
bool xattr_suits(EntryType type, std::string_view name);

/// Why `value` cannot be stored under `name`, if so.
std::optional<std::string> xattr_problem(std::string_view name, std::string_view value);
/// Why one entry cannot have all of them together, if so.
std::optional<std::string> xattrs_problem(const std::map<std::string, std::string>& xattrs);

/// Whether it is an ACL that says no more than the mode does, or nothing at all: Linux takes such a one and keeps none.
bool acl_says_nothing(std::string_view name, std::string_view value);

/// The value of system.posix_acl_* for an ACL in the text form that tar archives keep in SCHILY.acl.*
/// ("user::rwx,user:name:r--:1000,group::r-x,mask::r-x,other::---"); empty when a part of it cannot be understood, such
/// as a name without its number, unless it is that of root.
std::optional<std::string> acl_from_text(std::string_view text);

/// "a%20b" as LIBARCHIVE.xattr.* spells names; and base64, of which it makes values. Empty when they are malformed.
std::optional<std::string> percent_decode(std::string_view text);
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace dsec::layers
