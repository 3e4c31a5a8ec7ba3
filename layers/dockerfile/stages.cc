#include "layers/dockerfile/stages.h"

#include <algorithm>
#include <set>

#include "layers/dockerfile/run_mount.h"
#include "layers/dockerfile/words.h"

namespace dsec::layers::dockerfile {
namespace {

constexpr std::size_t kMostStages = 450;

std::string lower(std::string_view text) {
  std::string out;
  for (const char c : text) out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

bool is_stage_name(const std::string& name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  };
  return !name.empty() && name[0] >= 'a' && name[0] <= 'z' && std::all_of(name.begin(), name.end(), fits);
}

// OS/ARCHITECTURE[/VARIANT]
bool is_platform(const std::string& text) {
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '/'; };
  const auto slashes = std::count(text.begin(), text.end(), '/');
  return std::all_of(text.begin(), text.end(), fits) && (slashes == 1 || slashes == 2) && !text.starts_with('/') &&
         !text.ends_with('/') && text.find("//") == std::string::npos;
}

// TARGETOS and its kind, of one platform: nothing is built for another.
std::map<std::string, std::string> platform_args(const std::string& platform) {
  const std::size_t slash = platform.find('/');
  const std::string rest = platform.substr(slash + 1);
  std::map<std::string, std::string> args;
  for (const std::string side : {"TARGET", "BUILD"}) {
    args[side + "PLATFORM"] = platform;
    args[side + "OS"] = platform.substr(0, slash);
    args[side + "ARCH"] = rest.substr(0, rest.find('/'));
    args[side + "VARIANT"] = rest.find('/') == std::string::npos ? "" : rest.substr(rest.find('/') + 1);
  }
  return args;
}

class Lister {
 public:
  Lister(const Dockerfile& file, const Request& request, const std::string& platform)
      : file_(file), request_(request), platform_(platform) {
    list_.platform_args = platform_args(platform);
  }

  StageList run() {
    for (const Instruction& instruction : file_.instructions) {
      if (instruction.keyword == "FROM")
        from(instruction);
      else if (!list_.stages.empty())
        list_.stages.back().instructions.push_back(instruction);
      else if (instruction.keyword == "ARG")
        global_arg(instruction);
      else
        throw error_at(file_.origin, instruction, "a stage begins with FROM, and before it only ARG may stand");
    }
    if (list_.stages.empty()) throw usage_error(file_.origin + ":1: there is no FROM");
    std::set<std::size_t> needed;
    need(target(), needed);
    list_.needed.assign(needed.begin(), needed.end());
    return std::move(list_);
  }

 private:
  std::optional<std::string> global(const std::string& name) const {
    for (const auto* values : {&list_.global_args, &list_.platform_args})
      if (const auto found = values->find(name); found != values->end()) return found->second;
    return std::nullopt;
  }

  std::string expanded(const Instruction& instruction, const std::string& text) const {
    const Lookup lookup = [this](const std::string& name) { return global(name); };
    try {
      return expand(text, {lookup, file_.escape});
    } catch (const Error& error) {
      throw error_at(file_.origin, instruction, error.message());
    }
  }

  void global_arg(const Instruction& instruction) {
    if (!instruction.flags.empty())
      throw error_at(file_.origin, instruction, "there is no flag --" + instruction.flags[0].name);
    for (const std::string& word : words_of(instruction)) {
      const std::size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      list_.declared.push_back(name);
      if (const auto given = request_.args.find(name); given != request_.args.end())
        list_.global_args[name] = given->second;
      else if (equals != std::string::npos)
        list_.global_args[name] = expanded(instruction, word.substr(equals + 1));
    }
  }

  std::vector<std::string> words_of(const Instruction& instruction) const {
    try {
      return split_words(instruction.text, file_.escape);
    } catch (const Error& error) {
      throw error_at(file_.origin, instruction, error.message());
    }
  }

  void from(const Instruction& instruction) {
    StageText stage{.name = "", .from = instruction, .image = "", .on_stage = {}, .platform = "", .instructions = {}};
    for (const Flag& flag : instruction.flags) {
      if (flag.name != "platform") throw error_at(file_.origin, instruction, "there is no flag --" + flag.name);
      stage.platform = expanded(instruction, flag.value);
      if (!stage.platform.empty() && !is_platform(stage.platform))
        throw error_at(file_.origin, instruction,
                       "--platform=" + stage.platform + " is no platform like linux/amd64 or linux/arm/v7");
    }
    const std::vector<std::string> fields = split_fields(instruction.text);
    if (fields.size() != 1 && !(fields.size() == 3 && lower(fields[1]) == "as"))
      throw error_at(file_.origin, instruction, "FROM IMAGE or FROM IMAGE AS NAME is expected");
    if (fields.size() == 3) {
      stage.name = lower(fields[2]);
      if (!is_stage_name(stage.name))
        throw error_at(file_.origin, instruction, quote(fields[2]) + " is no name for a stage");
      const auto same = std::find_if(list_.stages.begin(), list_.stages.end(),
                                     [&](const StageText& other) { return other.name == stage.name; });
      if (same != list_.stages.end())
        throw error_at(file_.origin, instruction,
                       "line " + std::to_string(same->from.line) + " has a stage " + quote(stage.name) + " already");
    }
    stage.image = expanded(instruction, fields[0]);
    if (stage.image.empty()) throw error_at(file_.origin, instruction, quote(fields[0]) + " comes to nothing");
    for (std::size_t i = 0; i < list_.stages.size(); ++i)
      if (list_.stages[i].name == lower(stage.image)) stage.on_stage = i;
    const std::string& inherited = stage.on_stage ? list_.stages[*stage.on_stage].platform : platform_;
    if (stage.platform.empty()) stage.platform = inherited;
    if (stage.on_stage && stage.platform != inherited)
      throw error_at(file_.origin, instruction, "the stage " + quote(stage.image) + " is for " + inherited);
    if (list_.stages.size() == kMostStages)
      throw error_at(file_.origin, instruction, "there are more than " + std::to_string(kMostStages) + " stages");
    list_.stages.push_back(std::move(stage));
  }

  std::size_t target() const {
    if (request_.target.empty()) return list_.stages.size() - 1;
    if (const auto found = list_.find(request_.target, list_.stages.size())) return *found;
    std::vector<std::string> names;
    for (const StageText& stage : list_.stages)
      if (!stage.name.empty()) names.push_back(stage.name);
    Error error = usage_error(quote(file_.origin) + " has no stage " + quote(request_.target));
    for (const std::string& near : nearest_names(request_.target, names)) error.hint("did you mean " + near + "?");
    throw error;
  }

  // Only earlier stages can be named, so that no circle can come about and the depth is that of the file.
  void need(std::size_t first, std::set<std::size_t>& needed) const {
    std::vector<std::size_t> waiting = {first};
    while (!waiting.empty()) {
      const std::size_t i = waiting.back();
      waiting.pop_back();
      if (!needed.insert(i).second) continue;
      const StageText& stage = list_.stages[i];
      if (stage.on_stage) waiting.push_back(*stage.on_stage);
      for (const Instruction& instruction : stage.instructions)
        for (const std::string& name : names_in(instruction))
          if (const auto other = list_.find(name, i)) waiting.push_back(*other);
    }
  }

  std::vector<std::string> names_in(const Instruction& instruction) const {
    try {
      return named_by(instruction);
    } catch (const Error& error) {
      throw error_at(file_.origin, instruction, error.message());
    }
  }

  const Dockerfile& file_;
  const Request& request_;
  const std::string platform_;
  StageList list_;
};

}  // namespace

std::optional<std::size_t> StageList::find(const std::string& text, std::size_t before) const {
  if (text.empty()) return std::nullopt;
  for (std::size_t i = before; i-- > 0;)
    if (stages[i].name == lower(text)) return i;
  if (text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const std::size_t number = std::stoul(text);
  return number < before ? std::optional(number) : std::nullopt;
}

StageList list_stages(const Dockerfile& file, const Request& request, const std::string& platform) {
  return Lister(file, request, platform).run();
}

std::vector<std::string> named_by(const Instruction& instruction) {
  std::vector<std::string> names;
  for (const Flag& flag : instruction.flags) {
    std::string name;
    if (instruction.keyword == "COPY" && flag.name == "from") name = flag.value;
    if (instruction.keyword == "RUN" && flag.name == "mount") name = mounted_from(flag.value);
    if (!name.empty()) names.push_back(std::move(name));
  }
  return names;
}

bool runs_on(const std::string& platform, const std::string& host) {
  return platform == host || (platform == "linux/arm64/v8" && host == "linux/arm64") ||
         (platform == "linux/386" && host == "linux/amd64");
}

}  // namespace dsec::layers::dockerfile
