#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/progress.h"

namespace dsec::layers {

/// Whether a location is a URL ("ssh://…", "https://…", "user@host:path", "ext::…") and no path of this host.
/// "file:///path" is a path.
bool is_remote(std::string_view location);

/// Where the ':' of "user@host:path" is; empty for anything else.
std::optional<std::size_t> scp_colon(std::string_view location);

/// The path of "file:///path", percent-decoded; any other text as it is. Throws Error (Usage) for another host's file.
std::filesystem::path local_path(std::string_view location);

/// The URL without user name, password and query, fit for messages.
std::string without_credentials(std::string_view url);

/// Fetches into a new bare repository at `place` what `revision` may need: branches and tags (all refs when `all`), or
/// the commit itself when it is an id that they do not reach. https, http, ssh and git only; whatever would run a
/// program (ext::, fd::) is refused. Throws Error saying which credentials were tried.
void fetch_repository(const std::string& url, const std::string& revision, bool all, const std::filesystem::path& place,
                      Progress& progress);

}  // namespace dsec::layers
