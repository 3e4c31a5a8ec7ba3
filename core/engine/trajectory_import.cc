#include "core/engine/trajectory_import.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_bytes.h"
#include "core/base/sealed_lines.h"
#include "core/engine/atif.h"
#include "core/engine/swe_agent.h"
#include "core/engine/trajectory_builder.h"

namespace dsec::engine {
namespace fs = std::filesystem;
namespace {

// Of a document that is held in memory as a whole.
constexpr std::uint64_t kMostDocument = 64ull << 20;

constexpr std::pair<TrajectoryFormat, std::string_view> kFormats[] = {
    {TrajectoryFormat::Dsec, "dsec"}, {TrajectoryFormat::Atif, "atif"}, {TrajectoryFormat::SweAgent, "swe-agent"}};

// An export begins with its header, in a line that has a checksum.
bool looks_like_export(const fs::path& file) {
  const UniqueFd fd = open_file(file, O_RDONLY);
  std::string begin(4096, '\0');
  begin.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(fd.get(), begin.data(), begin.size()))));
  // The keys of a header are sorted.
  return begin.starts_with("{\"created_us\":");
}

// Only a regular file has an end, and can be read again.
fs::path regular_file(const fs::path& given) {
  std::error_code error;
  const fs::path file = fs::canonical(given, error);
  if (error) throw usage_error("open " + quote(given.native()) + ": " + errno_text(error.value()));
  if (!fs::is_regular_file(file)) throw usage_error(quote(given.native()) + " is no regular file");
  return file;
}

ImportedTrajectory import_export(const Home& home, const fs::path& file, const ImportOptions& options) {
  SealedLines lines(file);
  if (!lines.next()) throw usage_error(lines.damage().empty() ? "it has no header" : lines.damage());
  const Json first = lines.json();
  TrajectoryHeader header = trajectory_header_from(first);
  if (!first.contains("exported_us"))
    throw usage_error("it is a log without the files beside it")
        .hint("dsec traj export writes one file with all of it");
  check_trajectory_id(header.id);
  header.spec.name = options.name;
  if (header.source.empty()) header.source = to_string(TrajectoryFormat::Dsec);
  if (header.layers.empty()) {
    header.layers = options.header.layers;
    header.spec.layers = options.header.spec.layers;
  }

  TrajectoryBuilder builder(home, header);
  std::vector<std::pair<std::string, std::string>> begun;  // op_id and kind
  bool ended = false;
  while (!ended && lines.next()) {
    attempt("line " + std::to_string(lines.number()), [&] {
      const Json json = lines.json();
      const std::string record = json_string(json, "record");
      if (record == "started") {
        Operation operation = operation_from(json);
        begun.emplace_back(operation.op_id, operation.kind);
        builder.started(std::move(operation));
      } else if (record == "done") {
        Operation operation;
        operation.seq = json_u64(json, "seq");
        if (operation.seq < 1 || operation.seq > begun.size())
          throw usage_error("an operation ends that has not begun");
        std::tie(operation.op_id, operation.kind) = begun[operation.seq - 1];
        operation.done = done_from(json);
        builder.done(operation);
      } else if (record == kFileRecord) {
        builder.append_file(json_string(json, "name"), bytes_of_json(json.value("data", Json())));
      } else if (record == kEndRecord) {
        if (json_u64(json, "operations") != builder.operations() || json_u64(json, "files") != builder.files())
          throw usage_error("it is not whole: some of its operations or files are missing");
        ended = true;
      } else {
        throw usage_error(quote(record) + " is no kind of record");
      }
    });
  }
  if (!lines.damage().empty()) throw usage_error(lines.damage());
  if (!ended) throw usage_error("it ends early").hint("copy it again: the last line of a whole one says so");
  builder.publish();
  return {builder.id(), TrajectoryFormat::Dsec, builder.operations(), {}};
}

}  // namespace

void check_trajectory_id(const std::string& id) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  if (id.empty() || id.size() > 63 || !std::all_of(id.begin(), id.end(), allowed))
    throw usage_error(quote(id) + " is no id of a trajectory");
}

std::string_view to_string(TrajectoryFormat format) {
  return std::find_if(std::begin(kFormats), std::end(kFormats), [&](const auto& one) { return one.first == format; })
      ->second;
}

ImportedTrajectory import_trajectory(const Home& home, const fs::path& given, const ImportOptions& options) {
  return attempt("cannot import " + quote(given.native()), [&]() -> ImportedTrajectory {
    const fs::path file = regular_file(given);
    std::optional<TrajectoryFormat> format = options.format;
    if (!format && looks_like_export(file)) format = TrajectoryFormat::Dsec;
    if (format == TrajectoryFormat::Dsec) return import_export(home, file, options);

    const Json document = parse_json(read_file(file, kMostDocument), given.native());
    if (!format && is_atif(document)) format = TrajectoryFormat::Atif;
    if (!format && is_swe_agent(document)) format = TrajectoryFormat::SweAgent;
    if (!format)
      throw usage_error("it is no trajectory that dsec knows")
          .hint("export it as ATIF, or name its form with --format dsec, atif or swe-agent");
    TrajectoryHeader header = options.header;
    header.spec.name = options.name;
    header.source = to_string(*format);
    struct stat status = {};
    if (::stat(file.c_str(), &status) != 0) throw system_error("stat " + quote(file.native()));
    header.created = std::chrono::system_clock::from_time_t(status.st_mtim.tv_sec);
    return format == TrajectoryFormat::Atif ? import_atif(home, document, header)
                                            : import_swe_agent(home, document, header);
  });
}

}  // namespace dsec::engine
