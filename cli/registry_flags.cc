#include "cli/registry_flags.h"

#include "cli/command.h"
#include "core/base/error.h"
#include "registry/registries.h"

namespace dsec::cli {

void declare(Command& command, const std::string& name, const std::string& help, RegistryFlag& flag) {
  flag.name = name;
  command.option(name, "NAME|URL", flag.text,
                 help + ": a registry's name, " +
                     (name == "--to" ? registry::kPublishForms : registry::kRegistryForms) +
                     " (default: the only one configured)");
  command.flag("--allow-any-fs", flag.allow_any_fs, "Accept a 3fs: URL that is no 3FS mount");
}

void declare_source(Command& command, const std::string& help, RegistryFlag& flag) {
  flag.name = "--from";
  command.option(flag.name, "NAME|URL", flag.text, help + ": a registry's name, " + registry::kRegistryForms);
}

registry::RegistryAddress find(const RegistryFlag& flag) {
  const Config config = Config::load();
  if (flag.text.empty() && config.registries.size() != 1)
    throw usage_error("no registry is given").hint(flag.name + " NAME or " + flag.name + " file:///PATH");
  registry::RegistryAddress address = flag.text.empty() ? registry::RegistryAddress::of(config.registries.front())
                                                        : registry::find_registry(config, flag.text);
  address.allow_any_fs = address.allow_any_fs || flag.allow_any_fs;
  return address;
}

void declare_on_demand(Command& command, bool& on_demand) {
  command.flag("--on-demand", on_demand, "Copy what mounting takes; contents of files come when they are read");
}

registry::PullMode pull_mode(bool on_demand) {
  if (!on_demand) on_demand = Config::load().on_demand.value_or(OnDemandConfig{}).by_default;
  return on_demand ? registry::PullMode::OnDemand : registry::PullMode::Whole;
}

}  // namespace dsec::cli
