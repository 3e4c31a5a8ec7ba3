#include "runners/vm/module_table.h"

#include <algorithm>
#include <sstream>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/vm/unpacked.h"

namespace dsec::runners {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMostModules = 100'000;
constexpr std::size_t kDeepest = 200;

std::string normal(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

bool is_module(const fs::path& file) {
  const std::string name = file.filename().native();
  for (const char* ending : {".ko", ".ko.gz", ".ko.xz", ".ko.zst"})
    if (name.ends_with(ending)) return true;
  return false;
}

// Calls `visit` for each line that is no comment; a table that is missing has none.
template <typename Visit>
void each_line(const fs::path& path, Visit visit) {
  if (!fs::exists(path)) return;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line.front() != '#') visit(line);
}

}  // namespace

std::string module_name(const fs::path& file) {
  const std::string name = file.filename().native();
  return normal(name.substr(0, name.find(".ko")));
}

ModuleTable::ModuleTable(fs::path directory) : directory_(std::move(directory)) {
  read_files();
  read_builtin();
  read_dependencies();
  read_soft_dependencies();
  if (files_.empty() && builtin_.empty())
    throw failure(quote(directory_.native()) + " has no modules")
        .hint("give a directory with boot/vmlinuz-* and lib/modules/RELEASE");
}

void ModuleTable::read_files() {
  std::error_code failed;
  // Links out of the tree ("build", "source") are not followed.
  fs::recursive_directory_iterator at(directory_, failed), end;
  for (; !failed && at != end; at.increment(failed)) {
    if (!at->is_regular_file() || at->is_symlink() || !is_module(at->path())) continue;
    files_.try_emplace(module_name(at->path()), at->path());
    if (files_.size() > kMostModules) throw failure("it has more than 100000 modules");
  }
  if (failed) throw system_error("read " + quote(directory_.native()), failed.value());
}

void ModuleTable::read_builtin() {
  each_line(directory_ / "modules.builtin", [&](const std::string& line) { builtin_.insert(module_name(line)); });
  const fs::path info = directory_ / "modules.builtin.modinfo";
  if (!fs::exists(info)) return;
  // "NAME.alias=ALIAS", each ended by a NUL.
  const std::string text = read_file(info);
  for (const std::string& line : split_words(text, std::string_view("\0", 1))) {
    const auto mark = line.find(".alias=");
    if (mark != std::string::npos) builtin_aliases_.insert(normal(line.substr(mark + 7)));
  }
}

void ModuleTable::read_dependencies() {
  each_line(directory_ / "modules.dep", [&](const std::string& line) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) return;
    std::vector<std::string> names;
    for (const std::string& path : split_words(line.substr(colon + 1), " \t")) names.push_back(module_name(path));
    depends_[module_name(line.substr(0, colon))] = std::move(names);
  });
}

void ModuleTable::read_soft_dependencies() {
  each_line(directory_ / "modules.softdep", [&](const std::string& line) {
    const std::vector<std::string> words = split_words(line, " \t");
    if (words.size() > 2 && words[0] == "softdep")
      add_softdep(line.substr(line.find(words[1])), before_[normal(words[1])]);
  });
}

bool ModuleTable::is_builtin(const std::string& name) const {
  return builtin_.contains(normal(name)) || builtin_aliases_.contains(normal(name));
}

bool ModuleTable::exists(const std::string& name) const { return is_builtin(name) || files_.contains(normal(name)); }

const ModuleInfo& ModuleTable::info(const std::string& name) {
  const auto [place, added] = known_.try_emplace(name);
  if (!added) return place->second;
  const fs::path& file = files_.at(name);
  attempt("cannot read the module " + quote(file.filename().native()),
          [&] { place->second = read_module_info(read_unpacked(file, kMostModule)); });
  if (const auto told = depends_.find(name); told != depends_.end()) place->second.depends = told->second;
  if (const auto told = before_.find(name); told != before_.end()) place->second.before = told->second;
  return place->second;
}

void ModuleTable::read_aliases() {
  aliases_.emplace();
  const fs::path table = directory_ / "modules.alias";
  if (fs::exists(table)) {
    each_line(table, [&](const std::string& line) {
      const std::vector<std::string> words = split_words(line, " \t");
      if (words.size() == 3 && words[0] == "alias") aliases_->emplace(normal(words[1]), normal(words[2]));
    });
    return;
  }
  for (const auto& [name, file] : files_)
    for (const std::string& alias : info(name).aliases) aliases_->emplace(normal(alias), name);
}

std::vector<std::string> ModuleTable::named_by(const std::string& name_or_alias) {
  const std::string name = normal(name_or_alias);
  if (is_builtin(name)) return {};
  if (files_.contains(name)) return {name};
  if (!aliases_) read_aliases();
  std::vector<std::string> names;
  for (auto [at, end] = aliases_->equal_range(name); at != end; ++at) names.push_back(at->second);
  std::sort(names.begin(), names.end());
  return names;
}

void ModuleTable::add_needed(const std::string& name, const std::string& wanted_by, std::vector<fs::path>& order,
                             std::vector<std::string>& chain) {
  if (is_builtin(name)) return;
  const auto file = files_.find(name);
  if (file == files_.end())
    throw failure(wanted_by.empty() ? "this kernel has no module " + quote(name)
                                    : "the module " + quote(wanted_by) + " needs " + quote(name) +
                                          ", which this kernel has neither as a file nor built in");
  if (std::find(order.begin(), order.end(), file->second) != order.end()) return;
  // Soft dependencies may go in a circle; the kernel's own table of dependencies cannot.
  if (std::find(chain.begin(), chain.end(), name) != chain.end()) return;
  if (chain.size() == kDeepest) throw failure("modules need each other more than 200 deep");
  chain.push_back(name);
  const ModuleInfo told = info(name);
  for (const std::string& needed : told.depends) add_needed(normal(needed), name, order, chain);
  for (const std::string& wish : told.before)
    for (const std::string& found : named_by(wish)) add_needed(found, name, order, chain);
  chain.pop_back();
  order.push_back(file->second);
}

void ModuleTable::add(const std::string& name, std::vector<fs::path>& order) {
  std::vector<std::string> chain;
  add_needed(normal(name), "", order, chain);
}

}  // namespace dsec::runners
