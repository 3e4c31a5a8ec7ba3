#include "layers/dir/scrub.h"

#include <array>

namespace dsec::layers {
namespace {

constexpr std::array kRules = {
    ResidueRule{"temporary", "/tmp/*"},
    ResidueRule{"temporary", "/var/tmp/*"},
    ResidueRule{"temporary", "/run/**", true},
    ResidueRule{"temporary", "/root/.wget-hsts"},
    ResidueRule{"temporary", "/home/*/.wget-hsts"},

    ResidueRule{"logs", "/var/log/**", true},
    ResidueRule{"logs", "/root/.npm/_logs"},
    ResidueRule{"logs", "/home/*/.npm/_logs"},

    ResidueRule{"package-lists", "/var/lib/apt/lists/**", true},
    ResidueRule{"package-lists", "/var/cache/apt/*.bin"},
    ResidueRule{"package-lists", "/var/lib/dpkg/*-old"},
    ResidueRule{"package-lists", "/var/cache/debconf/*-old"},

    ResidueRule{"caches", "/var/cache/apt/archives/**", true},
    ResidueRule{"caches", "/var/cache/apk/*"},
    ResidueRule{"caches", "/var/cache/dnf/*"},
    ResidueRule{"caches", "/var/cache/yum/*"},
    ResidueRule{"caches", "/var/cache/zypp/*"},
    ResidueRule{"caches", "/var/cache/pacman/pkg/*"},
    ResidueRule{"caches", "/var/cache/ldconfig/aux-cache"},
    ResidueRule{"caches", "/var/cache/man/**", true},
    ResidueRule{"caches", "/root/.cache/pip"},
    ResidueRule{"caches", "/root/.cache/uv"},
    ResidueRule{"caches", "/root/.cache/go-build"},
    ResidueRule{"caches", "/root/.cache/yarn"},
    ResidueRule{"caches", "/root/.cache/node-gyp"},
    ResidueRule{"caches", "/root/.cache/composer"},
    ResidueRule{"caches", "/root/.cache/mesa_shader_cache"},
    ResidueRule{"caches", "/home/*/.cache/pip"},
    ResidueRule{"caches", "/home/*/.cache/uv"},
    ResidueRule{"caches", "/home/*/.cache/go-build"},
    ResidueRule{"caches", "/home/*/.cache/yarn"},
    ResidueRule{"caches", "/home/*/.cache/node-gyp"},
    ResidueRule{"caches", "/home/*/.cache/composer"},
    ResidueRule{"caches", "/home/*/.cache/mesa_shader_cache"},
    ResidueRule{"caches", "/root/.npm/_cacache"},
    ResidueRule{"caches", "/home/*/.npm/_cacache"},

    ResidueRule{"histories", "/root/.bash_history"},
    ResidueRule{"histories", "/root/.ash_history"},
    ResidueRule{"histories", "/root/.sh_history"},
    ResidueRule{"histories", "/root/.zsh_history"},
    ResidueRule{"histories", "/root/.fish_history"},
    ResidueRule{"histories", "/root/.python_history"},
    ResidueRule{"histories", "/root/.node_repl_history"},
    ResidueRule{"histories", "/root/.irb_history"},
    ResidueRule{"histories", "/root/.sqlite_history"},
    ResidueRule{"histories", "/root/.mysql_history"},
    ResidueRule{"histories", "/root/.psql_history"},
    ResidueRule{"histories", "/root/.rediscli_history"},
    ResidueRule{"histories", "/root/.lesshst"},
    ResidueRule{"histories", "/root/.viminfo"},
    ResidueRule{"histories", "/home/*/.bash_history"},
    ResidueRule{"histories", "/home/*/.ash_history"},
    ResidueRule{"histories", "/home/*/.sh_history"},
    ResidueRule{"histories", "/home/*/.zsh_history"},
    ResidueRule{"histories", "/home/*/.fish_history"},
    ResidueRule{"histories", "/home/*/.python_history"},
    ResidueRule{"histories", "/home/*/.node_repl_history"},
    ResidueRule{"histories", "/home/*/.irb_history"},
    ResidueRule{"histories", "/home/*/.sqlite_history"},
    ResidueRule{"histories", "/home/*/.mysql_history"},
    ResidueRule{"histories", "/home/*/.psql_history"},
    ResidueRule{"histories", "/home/*/.rediscli_history"},
    ResidueRule{"histories", "/home/*/.lesshst"},
    ResidueRule{"histories", "/home/*/.viminfo"},

    ResidueRule{"keys", "/etc/ssh/ssh_host_*_key"},
    ResidueRule{"keys", "/etc/ssh/ssh_host_*_key.pub"},
    ResidueRule{"keys", "/root/.ssh/id_*"},
    ResidueRule{"keys", "/root/.ssh/known_hosts*"},
    ResidueRule{"keys", "/root/.ssh/agent.*"},
    ResidueRule{"keys", "/root/.netrc"},
    ResidueRule{"keys", "/root/.git-credentials"},
    ResidueRule{"keys", "/root/.docker/config.json"},
    ResidueRule{"keys", "/root/.aws/credentials"},
    ResidueRule{"keys", "/root/.gnupg/private-keys-v1.d"},
    ResidueRule{"keys", "/home/*/.ssh/id_*"},
    ResidueRule{"keys", "/home/*/.ssh/known_hosts*"},
    ResidueRule{"keys", "/home/*/.ssh/agent.*"},
    ResidueRule{"keys", "/home/*/.netrc"},
    ResidueRule{"keys", "/home/*/.git-credentials"},
    ResidueRule{"keys", "/home/*/.docker/config.json"},
    ResidueRule{"keys", "/home/*/.aws/credentials"},
    ResidueRule{"keys", "/home/*/.gnupg/private-keys-v1.d"},

    ResidueRule{"identity", "/etc/machine-id"},
    ResidueRule{"identity", "/var/lib/dbus/machine-id"},
    ResidueRule{"identity", "/var/lib/systemd/random-seed"},
};

const IgnoreRules& compiled(bool files_only) {
  static const auto compile = [](bool wanted) {
    std::string text;
    for (const ResidueRule& rule : kRules)
      if (rule.files_only == wanted) text += std::string(rule.pattern) + "\n";
    return IgnoreRules::parse(text);
  };
  static const IgnoreRules everything = compile(false), files = compile(true);
  return files_only ? files : everything;
}

std::string lines(const std::vector<std::string>& patterns) {
  std::string text;
  for (const auto& pattern : patterns) text += pattern + "\n";
  return text;
}

// Whether the path or a folder above it matches.
bool covers(const IgnoreRules& rules, std::string_view path, bool folder) {
  if (rules.empty()) return false;
  for (auto slash = path.find('/'); slash != std::string_view::npos; slash = path.find('/', slash + 1))
    if (rules.ignores(path.substr(0, slash), true)) return true;
  return rules.ignores(path, folder);
}

}  // namespace

std::span<const ResidueRule> residue_rules() { return kRules; }

Scrub Scrub::standard(const std::vector<std::string>& more, const std::vector<std::string>& keep) {
  Scrub scrub;
  scrub.standard_ = true;
  scrub.more_ = IgnoreRules::parse(lines(more));
  scrub.keep_ = IgnoreRules::parse(lines(keep));
  scrub.patterns_ = "scrub\n" + lines(more) + "keep\n" + lines(keep);
  return scrub;
}

Scrub Scrub::only(const std::vector<std::string>& patterns) {
  Scrub scrub;
  scrub.more_ = IgnoreRules::parse(lines(patterns));
  scrub.patterns_ = "only\n" + lines(patterns);
  return scrub;
}

Scrub::Verdict Scrub::judge(std::string_view path, bool folder) const {
  if (path.empty()) return Verdict::Keep;
  if (!standard_) return more_.ignores(path, folder) ? Verdict::Residue : Verdict::Keep;
  if (covers(keep_, path, folder)) return Verdict::KeepAll;
  if (more_.ignores(path, folder) || compiled(false).ignores(path, folder)) return Verdict::Residue;
  return !folder && compiled(true).ignores(path, folder) ? Verdict::Residue : Verdict::Keep;
}

std::string Scrub::text() const {
  if (!standard_) return patterns_.empty() ? "nothing\n" : patterns_;
  std::string text;
  for (const ResidueRule& rule : kRules) text += std::string(rule.pattern) + (rule.files_only ? " files\n" : "\n");
  return text + patterns_;
}

}  // namespace dsec::layers
