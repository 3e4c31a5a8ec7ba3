#include "layers/git/line_diff.h"

#include <git2.h>

#include "layers/git/libgit.h"

namespace dsec::layers {
namespace {

int take_hunk(const git_diff_delta*, const git_diff_hunk* hunk, void* payload) {
  static_cast<LineDiff*>(payload)->hunks.append(hunk->header, hunk->header_len);
  return 0;
}

int take_line(const git_diff_delta*, const git_diff_hunk*, const git_diff_line* line, void* payload) {
  LineDiff& diff = *static_cast<LineDiff*>(payload);
  if (line->origin == GIT_DIFF_LINE_ADDITION) ++diff.added;
  if (line->origin == GIT_DIFF_LINE_DELETION) ++diff.deleted;
  // The other origins are the words about a missing end of line, which come whole.
  if (line->origin == GIT_DIFF_LINE_CONTEXT || line->origin == GIT_DIFF_LINE_ADDITION ||
      line->origin == GIT_DIFF_LINE_DELETION)
    diff.hunks += line->origin;
  diff.hunks.append(line->content, line->content_len);
  return 0;
}

}  // namespace

LineDiff diff_lines(std::string_view before, std::string_view after) {
  start_libgit2();
  git_diff_options options = GIT_DIFF_OPTIONS_INIT;
  options.flags = GIT_DIFF_FORCE_TEXT;
  options.context_lines = 3;
  LineDiff diff;
  check_git(git_diff_buffers(before.data(), before.size(), nullptr, after.data(), after.size(), nullptr, &options,
                             nullptr, nullptr, take_hunk, take_line, &diff),
            "compare two texts");
  return diff;
}

}  // namespace dsec::layers
