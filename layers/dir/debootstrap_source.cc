#include "layers/dir/debootstrap_source.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <deque>

#include "core/base/child_process.h"
#include "core/base/error.h"
#include "core/base/files.h"
#include "layers/archive/tar_source.h"
#include "layers/dir/scrub.h"

namespace dsec::layers {
namespace {

constexpr std::array<std::string_view, 7> kVariants = {"extract", "essential", "apt",     "minbase",
                                                       "buildd",  "important", "standard"};
constexpr std::string_view kStatusFile = "var/lib/dpkg/status";
constexpr std::size_t kLastLines = 15;

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto end = text.find(separator);
    if (end != 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parts;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : ",") + part;
  return text;
}

std::string line(const std::string& name, const std::string& value) { return name + " " + value + "\n"; }

// These become arguments of a program: none may look like an option or hold a separator of its own.
void check_word(std::string_view what, const std::string& word) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.:~_-/=";
  if (word.empty() || word[0] == '-' || word.find_first_not_of(kAllowed) != std::string::npos)
    throw usage_error(quote(word) + " is no " + std::string(what));
}

void take_option(std::string_view option, DebootstrapRequest& request) {
  const auto equals = option.find('=');
  const std::string_view name = option.substr(0, equals);
  const std::string value(equals == std::string_view::npos ? "" : option.substr(equals + 1));
  if (name == "include") {
    request.include = split(value, ',');
    for (const auto& package : request.include) check_word("package", package);
  } else if (name == "components") {
    request.components = split(value, ',');
    for (const auto& component : request.components) check_word("component", component);
  } else if (name == "variant") {
    if (std::find(kVariants.begin(), kVariants.end(), value) == kVariants.end())
      throw usage_error("mmdebstrap has no variant " + quote(value))
          .hint("minbase, essential, apt, buildd, important or standard");
    request.variant = value;
  } else if (name == "mirror") {
    check_word("mirror", value);
    request.mirror = value;
  } else if (name == "epoch") {
    std::int64_t seconds = 0;
    const auto [end, fault] = std::from_chars(value.data(), value.data() + value.size(), seconds);
    if (fault != std::errc() || end != value.data() + value.size() || seconds < 0)
      throw usage_error("epoch is a number of seconds since 1970, not " + quote(value));
    request.epoch = seconds;
  } else {
    throw usage_error("the source debootstrap: has no option " + quote(option))
        .hint("include, variant, components, mirror or epoch");
  }
}

// Passes on what belongs into a layer.
class Cleaned : public TreeSink {
 public:
  explicit Cleaned(TreeSink& under) : under_(under), scrub_(Scrub::standard()) {}

  void entry(const Entry& entry) override {
    taken_ = !left_out(entry.path, entry.type == EntryType::Directory);
    if (taken_) under_.entry(entry);
  }
  void data(std::string_view bytes) override {
    if (taken_) under_.data(bytes);
  }

 private:
  bool left_out(std::string_view path, bool folder) const {
    // Copies of this host's, for the time of the installation.
    if (path == "etc/resolv.conf" || path == "etc/hostname") return true;
    for (auto slash = path.find('/'); slash != std::string_view::npos; slash = path.find('/', slash + 1))
      if (scrub_.judge(path.substr(0, slash), true) == Scrub::Verdict::Residue) return true;
    return scrub_.judge(path, folder) == Scrub::Verdict::Residue;
  }

  TreeSink& under_;
  Scrub scrub_;
  bool taken_ = false;
};

// Keeps the one file that tells what is installed.
class StatusReader : public TreeSink {
 public:
  void entry(const Entry& entry) override { wanted_ = entry.path == kStatusFile; }
  void data(std::string_view bytes) override {
    if (wanted_) text += bytes;
  }
  std::string text;

 private:
  bool wanted_ = false;
};

class DebootstrapSource : public Source {
 public:
  explicit DebootstrapSource(DebootstrapRequest request) : request_(std::move(request)) {
    if (request_.spool.empty()) request_.spool = std::filesystem::temp_directory_path();
  }

  SourceFacts examine(const SourceOptions& options, Progress& progress) override {
    archive_.emplace(request_.spool);
    attempt("cannot make a system of the suite " + quote(request_.suite), [&] {
      run_mmdebstrap(request_, {.platform = options.platform, .output = archive_->fd(), .directory = {}, .options = {}},
                     progress);
    });
    tar_ = std::make_unique<TarSource>(archive_->path().native(), request_.spool);
    SourceFacts facts = tar_->examine(options, progress);
    StatusReader status;
    tar_->emit(0, status);
    std::string packages;
    for (const std::string& package : installed_packages(status.text)) packages += package + "\n";
    facts.platform = options.platform;
    facts.provenance = {};
    facts.provenance.source = "debootstrap";
    facts.provenance.inputs = {{"suite", request_.suite}, {"packages", Digest::of(packages).str()}};
    facts.provenance.options = {{"variant", request_.variant}};
    if (!request_.include.empty()) facts.provenance.options["include"] = joined(request_.include);
    if (!request_.components.empty()) facts.provenance.options["components"] = joined(request_.components);
    if (request_.epoch) facts.provenance.options["epoch"] = std::to_string(*request_.epoch);
    std::string identity = "debootstrap\n";
    for (const auto& [name, value] : facts.provenance.inputs) identity += line(name, value);
    for (const auto& [name, value] : facts.provenance.options) identity += line(name, value);
    facts.identity = Digest::of(identity);
    return facts;
  }

  void emit(std::size_t image, TreeSink& sink) override {
    Cleaned cleaned(sink);
    tar_->emit(image, cleaned);
  }

 private:
  DebootstrapRequest request_;
  std::optional<TempFile> archive_;
  std::unique_ptr<TarSource> tar_;
};

// Its messages line by line, and the last of them for the case that it fails.
std::deque<std::string> follow(const UniqueFd& pipe, const std::string& step, Progress& progress) {
  std::deque<std::string> last;
  std::string rest;
  char piece[4096];
  while (true) {
    const ssize_t got = ::read(pipe.get(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    rest.append(piece, static_cast<std::size_t>(got));
    for (auto end = rest.find_first_of("\r\n"); end != std::string::npos; end = rest.find_first_of("\r\n")) {
      std::string line = rest.substr(0, end);
      rest.erase(0, end + 1);
      if (line.empty()) continue;
      progress.output(step, line);
      last.push_back(std::move(line));
      if (last.size() > kLastLines) last.pop_front();
    }
  }
  if (!rest.empty()) last.push_back(rest);
  return last;
}

SpawnOptions command_of(const DebootstrapRequest& request, const DebootstrapRun& run) {
  SpawnOptions spawn;
  const bool directory = !run.directory.empty();
  spawn.argv = {"mmdebstrap", "--variant=" + request.variant, directory ? "--format=directory" : "--format=tar"};
  if (!request.include.empty()) spawn.argv.push_back("--include=" + joined(request.include));
  if (!request.components.empty()) spawn.argv.push_back("--components=" + joined(request.components));
  if (run.platform.starts_with("linux/")) {
    std::string machine = run.platform.substr(6);
    if (machine == "386") machine = "i386";
    if (machine == "arm/v7") machine = "armhf";
    check_word("platform", machine);
    spawn.argv.push_back("--architectures=" + machine);
  }
  spawn.argv.insert(spawn.argv.end(), run.options.begin(), run.options.end());
  spawn.argv.insert(spawn.argv.end(), {request.suite, directory ? run.directory.native() : "-"});
  if (!request.mirror.empty()) spawn.argv.push_back(request.mirror);
  spawn.environment.emplace();
  for (char** variable = environ; *variable; ++variable)
    if (!std::string_view(*variable).starts_with("SOURCE_DATE_EPOCH=")) spawn.environment->emplace_back(*variable);
  if (request.epoch) spawn.environment->push_back("SOURCE_DATE_EPOCH=" + std::to_string(*request.epoch));
  spawn.environment->push_back("LC_ALL=C.UTF-8");
  return spawn;
}

}  // namespace

void run_mmdebstrap(const DebootstrapRequest& request, const DebootstrapRun& run, Progress& progress) {
  const std::string step = "mmdebstrap " + request.suite;
  progress.begin(step);
  auto [reading, writing] = make_pipe();
  SpawnOptions spawn = command_of(request, run);
  spawn.descriptors = {{run.output >= 0 ? run.output : writing.get(), 1}, {writing.get(), 2}};
  ChildProcess child = [&] {
    try {
      return ChildProcess::spawn(spawn);
    } catch (Error& error) {
      throw std::move(error.hint("apt-get install mmdebstrap"));
    }
  }();
  writing.reset();
  const std::deque<std::string> last = follow(reading, step, progress);
  const ExitStatus status = child.wait();
  if (!status.ok()) {
    std::string said;
    for (const auto& line : last) said += (said.empty() ? "" : " | ") + line;
    throw failure(said.empty() ? "it said nothing" : "it said: " + said)
        .context("mmdebstrap ended with " + status.str());
  }
  progress.end(step, "");
}

DebootstrapRequest DebootstrapRequest::parse(std::string_view text) {
  DebootstrapRequest request;
  const auto mark = text.find('?');
  request.suite = text.substr(0, mark);
  check_word("suite", request.suite);
  if (mark != std::string_view::npos)
    for (const std::string& option : split(text.substr(mark + 1), '&')) take_option(option, request);
  return request;
}

std::unique_ptr<Source> open_debootstrap_source(DebootstrapRequest request) {
  return std::make_unique<DebootstrapSource>(std::move(request));
}

std::vector<std::string> installed_packages(std::string_view dpkg_status) {
  std::vector<std::string> packages;
  std::string name, version, architecture;
  bool installed = false;
  const auto finish = [&] {
    if (installed && !name.empty()) packages.push_back(name + ":" + architecture + " " + version);
    name.clear(), version.clear(), architecture.clear();
    installed = false;
  };
  while (!dpkg_status.empty()) {
    const std::string_view line = dpkg_status.substr(0, dpkg_status.find('\n'));
    dpkg_status.remove_prefix(std::min(line.size() + 1, dpkg_status.size()));
    if (line.empty()) finish();
    if (line.starts_with("Package: ")) name = line.substr(9);
    if (line.starts_with("Version: ")) version = line.substr(9);
    if (line.starts_with("Architecture: ")) architecture = line.substr(14);
    if (line.starts_with("Status: ")) installed = line.ends_with(" installed") || line.ends_with(" unpacked");
  }
  finish();
  std::sort(packages.begin(), packages.end());
  return packages;
}

}  // namespace dsec::layers
