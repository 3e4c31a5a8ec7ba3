#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runners/vm/module_info.h"

namespace dsec::runners {

/// The modules of one kernel (lib/modules/RELEASE) and what they need: by modules.dep and modules.softdep where depmod
/// has made these, else by what each module tells of itself, as in a package that was never installed.
class ModuleTable {
 public:
  /// Throws Error when the directory has no modules.
  explicit ModuleTable(std::filesystem::path directory);

  /// Built into the kernel: there is nothing to load.
  bool is_builtin(const std::string& name) const;
  bool exists(const std::string& name) const;
  /// Adds to `order` the file of a module after all that it needs, none twice. Throws Error when one is neither a file
  /// nor built in, naming who needs it.
  void add(const std::string& name, std::vector<std::filesystem::path>& order);

 private:
  void read_builtin();
  void read_files();
  void read_dependencies();
  void read_soft_dependencies();
  void add_needed(const std::string& name, const std::string& wanted_by, std::vector<std::filesystem::path>& order,
                  std::vector<std::string>& chain);
  const ModuleInfo& info(const std::string& name);
  std::vector<std::string> named_by(const std::string& name_or_alias);
  void read_aliases();

  std::filesystem::path directory_;
  std::map<std::string, std::filesystem::path> files_;  ///< by name, below directory_
  std::set<std::string> builtin_;
  std::set<std::string> builtin_aliases_;
  std::map<std::string, std::vector<std::string>> depends_;  ///< of modules.dep
  std::map<std::string, std::vector<std::string>> before_;   ///< of modules.softdep
  std::optional<std::multimap<std::string, std::string>> aliases_;
  std::map<std::string, ModuleInfo> known_;
};

/// "drivers/foo-bar.ko.xz" → "foo_bar": the kernel does not tell the two signs apart.
std::string module_name(const std::filesystem::path& file);

/// Larger ones are refused, packed or not.
inline constexpr std::uint64_t kMostModule = 64ull << 20;

}  // namespace dsec::runners
