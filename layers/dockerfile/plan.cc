#include "layers/dockerfile/plan.h"

#include <string.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "core/engine/compose_spec.h"
#include "core/http/shown_url.h"
#include "layers/dockerfile/health_check.h"
#include "layers/dockerfile/stages.h"
#include "layers/dockerfile/words.h"

namespace dsec::layers::dockerfile {
namespace fs = std::filesystem;
namespace {

constexpr const char* kDefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
constexpr std::array kProxyArgs = {"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "FTP_PROXY",
                                   "ftp_proxy",  "NO_PROXY",   "no_proxy",    "ALL_PROXY",   "all_proxy"};
constexpr std::size_t kMostPorts = 65536;
// What the settings of a stage may come to: each operation keeps those that it runs with.
constexpr std::size_t kMostSettings = 256 << 10;
// overlayfs stacks 500 layers.
constexpr std::size_t kMostOperations = 450;

std::string normal_below(const std::string& directory, const std::string& path) {
  fs::path normal = (fs::path(directory.empty() ? "/" : directory) / path).lexically_normal();
  if (!normal.has_filename() && normal.has_relative_path()) normal = normal.parent_path();
  return normal.native();
}

bool names_directory(const std::string& path) {
  return path.ends_with('/') || path == "." || path == ".." || path.ends_with("/.") || path.ends_with("/..");
}

// A name, with or without SIG, or a number.
bool is_signal(std::string name) {
  for (char& c : name) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  if (name.find_first_not_of("0123456789") == std::string::npos)
    return name.size() < 3 && std::stoi(name) > 0 && std::stoi(name) <= 64;
  if (name.starts_with("SIG")) name.erase(0, 3);
  for (int number = 1; number < 32; ++number)
    if (const char* const known = ::sigabbrev_np(number); known && name == known) return true;
  for (const std::string base : {"RTMIN", "RTMAX"}) {
    if (!name.starts_with(base)) continue;
    const std::string rest = name.substr(base.size());
    const bool number = rest.size() >= 2 && rest.size() <= 3 && rest[0] == (base == "RTMIN" ? '+' : '-') &&
                        rest.find_first_not_of("0123456789", 1) == std::string::npos;
    return rest.empty() || (number && std::stoi(rest.substr(1)) <= 30);
  }
  return false;
}

// "https://host/path.git[#REF]", "git@host:path[#REF]" and their kind as a source that layers/git knows; empty for
// what is no repository.
std::optional<std::string> git_source_of(const std::string& path) {
  const std::size_t hash = path.find('#');
  const std::string url = path.substr(0, hash);
  const bool web = url.starts_with("http://") || url.starts_with("https://");
  const bool git = url.starts_with("git@") || url.starts_with("ssh://") || url.starts_with("git://");
  const std::size_t query = std::min(url.find('?'), url.size());
  if (!git && !(web && url.substr(0, query).ends_with(".git"))) return std::nullopt;
  if (query < url.size())
    throw usage_error("a repository's URL with a query is not supported: " + quote(http::shown_url(path)))
        .hint("URL#REF");
  const std::string rev = hash == std::string::npos ? "" : path.substr(hash + 1);
  if (rev.find(':') != std::string::npos)
    throw usage_error("a folder of a repository is not supported: " + quote(http::shown_url(path)))
        .hint("URL#REF, and another instruction that takes what is needed of it");
  return url + "@" + (rev.empty() ? "HEAD" : rev);
}

/// Where a stage stands after an instruction.
struct State {
  ImageConfig config;
  std::map<std::string, std::string> args;
  bool own_command = false;  // CMD stood in this stage
};

class Planner {
 public:
  Planner(const Dockerfile& file, const Request& request, const std::string& platform, const ImageConfigs& images)
      : file_(file),
        request_(request),
        platform_(platform),
        images_(images),
        list_(list_stages(file, request, platform)) {}

  Plan run() {
    plan_.origin = file_.origin;
    for (const std::size_t i : list_.needed) {
      begin(i);
      for (const Instruction& instruction : list_.stages[i].instructions) one(instruction);
      stage_.config = state_.config;
      index_[i] = plan_.stages.size();
      plan_.stages.push_back(std::move(stage_));
      states_.push_back(state_);
    }
    refuse_unused_args();
    return std::move(plan_);
  }

 private:
  Error fail(const std::string& text) const { return error_at(file_.origin, *at_, text); }

  // ---- stages ----

  void begin(std::size_t i) {
    const StageText& text = list_.stages[i];
    at_ = &text.from;
    here_ = i;
    stage_ = Stage{.name = text.name,
                   .from = text.from,
                   .image = "",
                   .platform = text.platform,
                   .on_stage = {},
                   .operations = {},
                   .config = {}};
    state_ = {};
    if (text.on_stage) {
      stage_.on_stage = index_.at(*text.on_stage);
      state_ = states_[*stage_.on_stage];
    } else {
      stage_.image = text.image;
      if (text.image != "scratch") state_.config = images_({text.image, text.platform, text.from});
    }
    state_.own_command = false;
    run_triggers(text.from);
  }

  // What the image holds back for whoever is FROM it comes before the stage's own instructions, once.
  void run_triggers(const Instruction& from) {
    for (const std::string& text : std::exchange(state_.config.onbuild, {})) {
      Instruction trigger;
      try {
        trigger = parse_trigger(text);
      } catch (const Error& error) {
        throw fail("what it is FROM has an ONBUILD " + quote(text) + ": " + error.message());
      }
      trigger.line = from.line;
      at_ = &trigger;
      if (!named_by(trigger).empty()) throw fail("stages and images cannot be named in a trigger");
      one(trigger);
      at_ = &from;
    }
  }

  void refuse_unused_args() const {
    std::vector<std::string> declared = list_.declared;
    declared.insert(declared.end(), declared_.begin(), declared_.end());
    for (const StageText& stage : list_.stages)
      for (const Instruction& instruction : stage.instructions)
        if (instruction.keyword == "ARG")
          for (const std::string& word : split_fields(instruction.text))
            declared.push_back(word.substr(0, word.find('=')));
    for (const auto& [name, value] : request_.args) {
      const bool proxy = std::find(kProxyArgs.begin(), kProxyArgs.end(), name) != kProxyArgs.end();
      if (proxy || std::find(declared.begin(), declared.end(), name) != declared.end()) continue;
      Error error = usage_error(quote(file_.origin) + " has no ARG " + name);
      for (const std::string& near : nearest_names(name, declared, 1)) error.hint("did you mean " + near + "?");
      throw error;
    }
  }

  // ---- variables ----

  std::optional<std::string> variable(const std::string& name) const {
    const std::string prefix = name + "=";
    for (const std::string& assignment : state_.config.env)
      if (assignment.starts_with(prefix)) return assignment.substr(prefix.size());
    if (const auto arg = state_.args.find(name); arg != state_.args.end()) return arg->second;
    if (name == "PATH") return kDefaultPath;
    return std::nullopt;
  }

  std::string expanded(std::string_view text, bool keep_quotes = false) const {
    const Lookup lookup = [this](const std::string& name) { return variable(name); };
    try {
      return expand(text, {lookup, file_.escape, keep_quotes});
    } catch (const Error& error) {
      throw fail(error.message());
    }
  }

  std::vector<std::string> expanded_fields(const std::string& text) const {
    std::vector<std::string> out;
    for (const std::string& field : json_words(text).value_or(split_fields(text))) out.push_back(expanded(field));
    return out;
  }

  std::vector<std::string> words() const {
    try {
      return split_words(at_->text, file_.escape);
    } catch (const Error& error) {
      throw fail(error.message());
    }
  }

  // NAME=VALUE …, or (ENV alone) NAME and all that follows.
  std::vector<std::pair<std::string, std::string>> assignments(bool old_form) const {
    std::vector<std::pair<std::string, std::string>> out;
    const std::vector<std::string> all = words();
    if (old_form && !all.empty() && all[0].find('=') == std::string::npos) {
      if (all.size() < 2) throw fail("NAME=VALUE is expected, not " + quote(all[0]));
      const std::size_t behind = at_->text.find_first_not_of(" \t", all[0].size());
      return {{expanded(all[0]), expanded(std::string_view(at_->text).substr(behind))}};
    }
    for (const std::string& word : all) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos) throw fail("NAME=VALUE is expected, not " + quote(word));
      const std::string name = expanded(word.substr(0, equals));
      if (name.empty()) throw fail(quote(word) + " has no name");
      out.emplace_back(name, expanded(std::string_view(word).substr(equals + 1)));
    }
    return out;
  }

  // ---- flags ----

  void allow_flags(std::initializer_list<std::string_view> known) const {
    std::vector<std::string> seen;
    for (const Flag& flag : at_->flags) {
      if (std::find(known.begin(), known.end(), flag.name) == known.end()) {
        Error error = fail("the flag --" + flag.name + " is unknown or not supported");
        const std::vector<std::string> names(known.begin(), known.end());
        for (const std::string& near : nearest_names(flag.name, names, 1)) error.hint("did you mean --" + near + "?");
        throw error;
      }
      if (flag.name != "exclude" && flag.name != "mount" &&
          std::find(seen.begin(), seen.end(), flag.name) != seen.end())
        throw fail("--" + flag.name + " stands twice");
      seen.push_back(flag.name);
    }
  }

  std::string flag(std::string_view name) const {
    for (const Flag& flag : at_->flags)
      if (flag.name == name) {
        if (flag.value.empty()) throw fail("--" + flag.name + " has no value");
        return flag.value;
      }
    return "";
  }

  // ---- instructions ----

  void one(const Instruction& instruction) {
    at_ = &instruction;
    const std::string& keyword = instruction.keyword;
    if (keyword == "RUN") return run_command();
    if (keyword == "COPY" || keyword == "ADD") return copy_files();
    if (keyword == "HEALTHCHECK") return health_check();
    allow_flags({});
    if (keyword == "ENV") {
      for (const auto& [name, value] : assignments(true)) engine::set_variable(pending_, name + "=" + value);
      for (const std::string& assignment : std::exchange(pending_, {}))
        engine::set_variable(state_.config.env, assignment);
    } else if (keyword == "LABEL") {
      for (const auto& [name, value] : assignments(true)) state_.config.labels[name] = value;
    } else if (keyword == "ARG") {
      argument();
    } else if (keyword == "WORKDIR") {
      work_directory();
    } else if (keyword == "USER") {
      state_.config.user = some(expanded(instruction.text));
    } else if (keyword == "SHELL") {
      const auto shell = json_words(instruction.text);
      if (!shell || shell->empty()) throw fail("a list like [\"/bin/bash\", \"-c\"] is expected");
      state_.config.shell = *shell;
    } else if (keyword == "CMD") {
      state_.config.command = command();
      state_.own_command = true;
    } else if (keyword == "ENTRYPOINT") {
      state_.config.entrypoint = command();
      // An inherited CMD was meant for another entrypoint.
      if (!state_.own_command) state_.config.command.clear();
    } else if (keyword == "EXPOSE") {
      for (const std::string& field : expanded_fields(instruction.text)) expose(field);
    } else if (keyword == "VOLUME") {
      for (const std::string& path : expanded_fields(instruction.text)) add_once(state_.config.volumes, some(path));
    } else if (keyword == "STOPSIGNAL") {
      stop_signal();
    } else if (keyword == "ONBUILD") {
      (void)understood([&] { return parse_trigger(instruction.text); });
      state_.config.onbuild.push_back(instruction.text);
    } else {
      throw fail("not supported").hint("LABEL maintainer=NAME");
    }
    check_settings();
  }

  void check_settings() const {
    if (settings_size() > kMostSettings)
      throw fail("the settings of the stage come to more than " + std::to_string(kMostSettings) + " bytes");
  }

  // What a reader of one instruction finds wrong, with its place.
  template <typename Action>
  auto understood(Action&& action) const -> decltype(action()) {
    try {
      return action();
    } catch (const Error& error) {
      Error placed = fail(error.message());
      for (const std::string& hint : error.hints()) placed.hint(hint);
      throw placed;
    }
  }

  void health_check() {
    state_.config.healthcheck = understood([&] { return parse_health_check(*at_); });
    check_settings();
  }

  void stop_signal() {
    const std::string signal = some(expanded(at_->text));
    if (!is_signal(signal)) throw fail(quote(signal) + " is no signal").hint("a name like SIGTERM, or a number");
    state_.config.stop_signal = signal;
  }

  std::string some(std::string text) const {
    if (text.empty()) throw fail(quote(at_->text) + " comes to nothing");
    return text;
  }

  std::size_t settings_size() const {
    const ImageConfig& config = state_.config;
    std::size_t size = config.workdir.size() + config.user.size() + config.stop_signal.size();
    for (const auto* list : {&config.env, &config.entrypoint, &config.command, &config.exposed_ports, &config.volumes,
                             &config.shell, &config.onbuild})
      for (const std::string& text : *list) size += text.size();
    for (const auto* map : {&config.labels, &state_.args})
      for (const auto& [name, value] : *map) size += name.size() + value.size();
    return size;
  }

  static void add_once(std::vector<std::string>& list, const std::string& text) {
    if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(text);
  }

  void argument() {
    for (const std::string& word : words()) {
      const std::size_t equals = word.find('=');
      const std::string name = expanded(word.substr(0, equals));
      if (name.empty()) throw fail(quote(word) + " has no name");
      declared_.push_back(name);
      std::optional<std::string> value;
      if (const auto given = request_.args.find(name); given != request_.args.end())
        value = given->second;
      else if (equals != std::string::npos)
        value = expanded(std::string_view(word).substr(equals + 1));
      else
        value = global_value(name);
      if (value) state_.args[name] = *value;
    }
  }

  std::optional<std::string> global_value(const std::string& name) const {
    for (const auto* values : {&list_.global_args, &list_.platform_args})
      if (const auto found = values->find(name); found != values->end()) return found->second;
    return std::nullopt;
  }

  std::vector<std::string> in_shell(const std::string& text) const {
    std::vector<std::string> argv = state_.config.shell;
    if (argv.empty()) argv = {"/bin/sh", "-c"};
    argv.push_back(text);
    return argv;
  }
  std::vector<std::string> command() const { return json_words(at_->text).value_or(in_shell(at_->text)); }

  void expose(const std::string& text) {
    const std::size_t slash = text.find('/');
    std::string protocol = slash == std::string::npos ? "tcp" : text.substr(slash + 1);
    for (char& c : protocol) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    const std::string ports = text.substr(0, slash);
    const std::size_t dash = ports.find('-');
    const auto number = [&](const std::string& digits) {
      if (digits.empty() || digits.size() > 5 || digits.find_first_not_of("0123456789") != std::string::npos ||
          std::stoul(digits) >= kMostPorts)
        throw fail(quote(text) + " is no port");
      return std::stoul(digits);
    };
    if (protocol != "tcp" && protocol != "udp" && protocol != "sctp") throw fail(quote(text) + " is no port");
    const unsigned long first = number(ports.substr(0, dash));
    const unsigned long last = dash == std::string::npos ? first : number(ports.substr(dash + 1));
    if (last < first || last - first > 1024) throw fail(quote(text) + " is no range of at most 1024 ports");
    for (unsigned long port = first; port <= last; ++port)
      add_once(state_.config.exposed_ports, std::to_string(port) + "/" + protocol);
  }

  void work_directory() {
    state_.config.workdir = normal_below(state_.config.workdir, some(expanded(at_->text)));
    add(MakeDirectory{state_.config.workdir});
  }

  template <typename Work>
  void add(Work work) {
    if (++operations_ > kMostOperations)
      throw fail("more than " + std::to_string(kMostOperations) + " instructions that make files");
    ImageConfig config;
    config.env = state_.config.env;
    config.workdir = state_.config.workdir;
    config.user = state_.config.user;
    stage_.operations.push_back({*at_, std::move(config), std::move(work)});
  }

  void run_command() {
    allow_flags({"network", "mount"});
    if (!runs_on(stage_.platform, platform_))
      throw fail("the stage is for " + stage_.platform + ", and this host runs " + platform_)
          .hint("COPY and ADD alone make files for another platform");
    RunCommand run{.argv = {}, .args = {}, .host_network = request_.host_network, .mounts = mounts()};
    if (const std::string network = flag("network"); network == "none")
      run.host_network = false;
    else if (network == "host" && !request_.host_network)
      throw fail("--network=host needs leave").hint("?network=host behind the folder gives the host's network to RUN");
    else if (!network.empty() && network != "host" && network != "default")
      throw fail("--network=" + network + " is unknown: none, default or host");
    if (has_script())
      run.script = at_->heredocs[0].content;
    else
      run.argv = run_argv();
    for (const auto& [name, value] : state_.args) run.args[name] = value;
    for (const char* name : kProxyArgs)
      if (const auto given = request_.args.find(name); given != request_.args.end()) run.args.insert(*given);
    for (const std::string& assignment : state_.config.env) run.args.erase(engine::variable_name(assignment));
    add(std::move(run));
  }

  std::vector<RunMount> mounts() const {
    std::vector<RunMount> made;
    for (const Flag& flag : at_->flags) {
      if (flag.name != "mount") continue;
      RunMount mount = understood([&] {
        return parse_run_mount(flag.value, state_.config.workdir,
                               [this](const std::string& text) { return expanded(text); });
      });
      if (const auto stage = list_.find(mount.from, here_))
        mount.from_stage = index_.at(*stage);
      else
        mount.from_image = mount.from;
      for (const RunMount& other : made)
        if (!mount.target.empty() && other.target == mount.target)
          throw fail("two mounts have the target " + quote(mount.target));
      made.push_back(std::move(mount));
    }
    return made;
  }

  bool has_script() const {
    return at_->heredocs.size() == 1 && split_fields(at_->text).size() == 1 &&
           at_->heredocs[0].content.starts_with("#!");
  }

  std::vector<std::string> run_argv() const {
    if (at_->heredocs.empty()) {
      std::vector<std::string> argv = command();
      if (argv.empty()) throw fail("the command is empty");
      return argv;
    }
    // A here-document alone is the script; beside anything else the shell reads it itself.
    if (at_->heredocs.size() == 1 && split_fields(at_->text).size() == 1) return in_shell(at_->heredocs[0].content);
    std::string text = at_->text + "\n";
    for (const Heredoc& heredoc : at_->heredocs) text += heredoc.content + heredoc.name + "\n";
    return in_shell(text);
  }

  void copy_files() {
    CopyFiles copy;
    copy.unpack = at_->keyword == "ADD";
    if (copy.unpack)
      allow_flags({"chown", "chmod", "exclude", "link", "checksum"});
    else
      allow_flags({"chown", "chmod", "exclude", "link", "from"});
    take_copy_flags(copy);
    std::vector<std::string> paths = json_words(at_->text).value_or(split_fields(at_->text));
    if (paths.size() < 2) throw fail("at least one source and a destination are expected");
    const std::string to = some(expanded(paths.back()));
    paths.pop_back();
    std::size_t heredoc = 0;
    for (const std::string& path : paths) {
      if (heredoc < at_->heredocs.size() && path.find("<<") != std::string::npos) {
        const Heredoc& found = at_->heredocs[heredoc++];
        if (found.name == "." || found.name == ".." || found.name.find('/') != std::string::npos)
          throw fail("the name of a here-document becomes that of a file, which " + quote(found.name) + " cannot be");
        copy.inlines.push_back({found.name, found.expand ? expanded(found.content, true) : found.content});
      } else {
        take_source(some(expanded(path)), copy);
      }
    }
    take_checksum(copy);
    copy.into = names_directory(to);
    copy.to = normal_below(state_.config.workdir, to);
    if (paths.size() > 1 && !copy.into)
      throw fail("with more than one source the destination " + quote(to) + " has to end with '/'");
    add(std::move(copy));
  }

  void take_copy_flags(CopyFiles& copy) const {
    copy.owner = expanded(flag("chown"));
    if (const std::string mode = expanded(flag("chmod")); !mode.empty()) {
      if (mode.size() > 5 || mode.find_first_not_of("01234567") != std::string::npos ||
          std::stoul(mode, nullptr, 8) > 07777)
        throw fail("--chmod=" + mode + " is not supported: an octal mode like 0644 is expected");
      copy.mode = static_cast<std::uint32_t>(std::stoul(mode, nullptr, 8));
    }
    for (const Flag& one : at_->flags) {
      if (one.name == "exclude") copy.exclude.push_back(some(expanded(one.value)));
      // What --link promises, that a copy does not depend on what lies below, layers give for its content.
      if (one.name == "link" && one.has_value && one.value != "true" && one.value != "false")
        throw fail("--link=" + one.value + " is neither true nor false");
    }
    const std::string from = flag("from");
    if (from.empty()) return;
    if (from.find('$') != std::string::npos) throw fail("--from takes no variables");
    if (const auto stage = list_.find(from, here_))
      copy.from_stage = index_.at(*stage);
    else
      copy.from_image = from;
  }

  void take_source(const std::string& path, CopyFiles& copy) const {
    if (!copy.unpack) return copy.sources.push_back(path);
    if (std::optional<std::string> repository = understood([&] { return git_source_of(path); }))
      copy.repositories.push_back(*std::move(repository));
    else if (path.starts_with("http://") || path.starts_with("https://"))
      copy.urls.push_back(path);
    else
      copy.sources.push_back(path);
  }

  void take_checksum(CopyFiles& copy) const {
    copy.checksum = expanded(flag("checksum"));
    if (copy.checksum.empty()) return;
    if (copy.urls.size() != 1 || !copy.sources.empty() || !copy.inlines.empty() || !copy.repositories.empty())
      throw fail("--checksum is of one https:// or http:// URL that stands alone");
    if (!copy.checksum.starts_with("sha256:") || !Digest::valid_hex(copy.checksum.substr(7)))
      throw fail("--checksum=" + copy.checksum + " is not supported: sha256:HEX is expected");
  }

  const Dockerfile& file_;
  const Request& request_;
  const std::string platform_;
  const ImageConfigs& images_;
  StageList list_;
  Plan plan_;
  std::map<std::size_t, std::size_t> index_;  // of a stage in the plan, by its index in the file
  std::vector<State> states_;                 // at the end of the plan's stages
  const Instruction* at_ = nullptr;
  std::size_t here_ = 0, operations_ = 0;
  Stage stage_;
  State state_;
  std::vector<std::string> pending_;
  std::vector<std::string> declared_;  // ARGs that were met
};

}  // namespace

Plan make_plan(const Dockerfile& file, const Request& request, const std::string& platform,
               const ImageConfigs& images) {
  return Planner(file, request, platform, images).run();
}

std::vector<NamedImage> images_of(const Dockerfile& file, const Request& request, const std::string& platform) {
  const StageList list = list_stages(file, request, platform);
  std::vector<NamedImage> images;
  for (const std::size_t i : list.needed) {
    const StageText& stage = list.stages[i];
    if (!stage.on_stage && stage.image != "scratch") images.push_back({stage.image, stage.platform, stage.from});
    for (const Instruction& instruction : stage.instructions)
      for (const std::string& name : named_by(instruction))
        if (!list.find(name, i)) images.push_back({name, platform, instruction});
  }
  return images;
}

}  // namespace dsec::layers::dockerfile
