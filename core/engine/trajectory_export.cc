#include "core/engine/trajectory_export.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_bytes.h"
#include "core/base/sealed_lines.h"
#include "core/base/spool_record.h"
#include "core/engine/file_lines.h"
#include "core/engine/network_log.h"
#include "core/engine/tar_entries.h"

namespace dsec::engine {
namespace {

// A multiple of a block of tar.
constexpr std::size_t kPiece = 192u << 10;
constexpr std::size_t kLongestLine = 1u << 20;

std::size_t read_at(int fd, void* to, std::size_t size, std::uint64_t at) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(fd, static_cast<char*>(to) + done, size - done, static_cast<off_t>(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read a file of the trajectory");
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

// Calls take(data, at) for the first `size` bytes of a file, piece by piece.
template <typename Take>
void read_pieces(int fd, std::uint64_t size, Take&& take) {
  std::string data;
  for (std::uint64_t at = 0; at < size; at += data.size()) {
    data.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, size - at)));
    data.resize(read_at(fd, data.data(), data.size(), at));
    if (data.empty()) return;
    take(data, at);
  }
}

// Calls take(record, data) for each whole record among the first `size` bytes of a spool file.
template <typename Take>
void read_records(int fd, std::uint64_t size, Take&& take) {
  std::string data;
  SpoolRecord record = {};
  for (std::uint64_t at = 0; at + sizeof record <= size; at += sizeof record + record.length) {
    if (read_at(fd, &record, sizeof record, at) != sizeof record) return;
    if (record.length > size - at - sizeof record || record.stream < 1 || record.stream > 2) return;
    data.resize(record.length);
    if (read_at(fd, data.data(), data.size(), at + sizeof record) != data.size()) return;
    take(record, data);
  }
}

class Export {
 public:
  Export(const Trajectory& trajectory, const SecretMask& mask, int fd)
      : trajectory_(trajectory), mask_(mask.with(SecretMask::Form::SameLength)), fd_(fd) {}

  Exported run() {
    Json header = parse_json(to_line(mask_.header(trajectory_.header)), "header");
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    header["exported_us"] = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    line(header);
    for (const Operation& operation : trajectory_.operations) write(operation);
    network();
    line({{"record", kEndRecord}, {"operations", told_.operations}, {"files", told_.files}});
    flush();
    return told_;
  }

 private:
  // A file as it goes into the export: lines with a part of it each.
  class Content {
   public:
    Content(Export& to, std::string name) : to_(to), name_(std::move(name)) { ++to_.told_.files; }
    void append(std::string_view data) {
      bytes_ += data.size();
      while (!data.empty()) {
        const std::size_t taken = std::min(data.size(), kPiece - part_.size());
        part_ += data.substr(0, taken);
        data.remove_prefix(taken);
        if (part_.size() == kPiece) put();
      }
    }
    std::uint64_t finish() {
      if (!part_.empty() || bytes_ == 0) put();
      return bytes_;
    }

   private:
    void put() {
      to_.line({{"record", kFileRecord}, {"name", name_}, {"data", json_bytes(part_)}});
      part_.clear();
    }
    Export& to_;
    const std::string name_;
    std::string part_;
    std::uint64_t bytes_ = 0;
  };

  void line(const Json& json) {
    buffer_ += sealed_line(canonical_json(json), checksum_);
    if (buffer_.size() >= 1u << 20) flush();
  }
  void flush() {
    write_all(fd_, buffer_);
    told_.bytes += buffer_.size();
    buffer_.clear();
  }

  void write(const Operation& recorded) {
    Operation operation = mask_.operation(recorded);
    if (mask_.text(operation.op_id) != operation.op_id) operation.op_id = "#" + std::to_string(operation.seq);
    ++told_.operations;
    line(parse_json(started_line(operation), "record"));
    if (!operation.done) return;
    Operation::Done& done = *operation.done;
    if (!done.output.empty()) output(recorded, done);
    if (done.stdin_file) {
      const UniqueFd file = trajectory_.beside(done.stdin_file->name);
      SecretScan scan(mask_);
      read_pieces(file.get(), done.stdin_file->bytes, [&](const std::string& data, auto) { scan.push(data); });
      if (trajectory_.input_was_cut(recorded)) scan.gap();
      done.stdin_file->bytes = copy(file.get(), *done.stdin_file, scan.finish());
    } else if (!done.stdin_data.empty()) {
      SecretScan scan(mask_);
      scan.push(recorded.done->stdin_data);
      if (trajectory_.input_was_cut(recorded)) scan.gap();
      blank(done.stdin_data = recorded.done->stdin_data, 0, scan.finish());
    }
    if (done.content && !done.content->name.empty()) content(operation);
    line(parse_json(done_line(operation), "record"));
  }

  // The parts of the spool: where one stream goes on in another file, a secret may do so as well.
  void output(const Operation& recorded, Operation::Done& done) {
    std::vector<UniqueFd> files;
    for (const Operation::Part& part : done.output) files.push_back(trajectory_.beside(part.name));
    const Json result = parse_json(recorded.done->result, "result");
    const bool cut[2] = {json_u64_or(result, "stdout_dropped", 0) > 0, json_u64_or(result, "stderr_dropped", 0) > 0};
    SecretScan scans[2] = {SecretScan(mask_), SecretScan(mask_)};
    bool passed[2] = {};
    for (std::size_t i = 0; i < files.size(); ++i)
      read_records(files[i].get(), done.output[i].bytes, [&](const SpoolRecord& record, const std::string& data) {
        const unsigned stream = record.stream - 1;
        if (i > 0 && cut[stream] && !std::exchange(passed[stream], true)) scans[stream].gap();
        scans[stream].push(data);
      });
    for (unsigned stream = 0; stream < 2; ++stream)
      if (cut[stream] && !passed[stream]) scans[stream].gap();
    const std::vector<SecretScan::Place> places[2] = {scans[0].finish(), scans[1].finish()};
    told_.masked += places[0].size() + places[1].size();
    std::uint64_t at[2] = {};
    for (std::size_t i = 0; i < files.size(); ++i) {
      Content to(*this, done.output[i].name);
      read_records(files[i].get(), done.output[i].bytes, [&](const SpoolRecord& record, std::string& data) {
        const unsigned stream = record.stream - 1;
        blank(data, at[stream], places[stream]);
        at[stream] += data.size();
        to.append({reinterpret_cast<const char*>(&record), sizeof record});
        to.append(data);
      });
      done.output[i].bytes = to.finish();
    }
  }

  std::uint64_t copy(int fd, const Operation::Part& part, const std::vector<SecretScan::Place>& places) {
    told_.masked += places.size();
    Content to(*this, part.name);
    read_pieces(fd, part.bytes, [&](std::string& data, std::uint64_t at) {
      blank(data, at, places);
      to.append(data);
    });
    return to.finish();
  }

  // A tar stream stays one: names keep their length, and the checksums of their headers are made anew.
  void content(Operation& operation) {
    Operation::Content& content = *operation.done->content;
    const UniqueFd file = trajectory_.beside(content.name);
    std::vector<SecretScan::Place> places;
    std::set<std::uint64_t> headers;
    std::uint64_t run_begin = 0, run_end = 0;
    SecretScan run(mask_);
    const auto end_run = [&] {
      for (const SecretScan::Place& place : run.finish())
        places.push_back({run_begin + place.begin, run_begin + place.end});
      run = SecretScan(mask_);
    };
    TarWalk walk({.header =
                      [&](const TarHeader&, std::string_view block, std::uint64_t at) {
                        end_run();
                        if (scan_header(block, at, places)) headers.insert(at);
                      },
                  .data =
                      [&](std::string_view data, std::uint64_t at) {
                        if (at != run_end) {
                          end_run();
                          run_begin = at;
                        }
                        run.push(data);
                        run_end = at + data.size();
                      }});
    read_pieces(file.get(), content.bytes, [&](const std::string& data, auto) { walk.push(data); });
    walk.finish();
    end_run();
    told_.masked += places.size();
    Content to(*this, content.name);
    Sha256 hash;
    read_pieces(file.get(), content.bytes, [&](std::string& data, std::uint64_t at) {
      blank(data, at, places);
      for (auto header = headers.lower_bound(at); header != headers.end() && *header < at + data.size(); ++header) {
        std::string block = data.substr(*header - at, TarHeader::kSize);
        set_tar_checksum(block);
        data.replace(*header - at, block.size(), block);
      }
      hash.update(data);
      to.append(data);
    });
    content.bytes = to.finish();
    if (places.empty()) return;
    content.sha256 = hash.finish().hex();
    Json result = parse_json(operation.done->result, "result");
    if (result.contains("sha256")) result["sha256"] = content.sha256;
    operation.done->result = canonical_json(result);
  }

  // True when something of it is secret. A name may lie in two fields, with a slash between that neither has.
  bool scan_header(std::string_view block, std::uint64_t at, std::vector<SecretScan::Place>& places) const {
    const std::size_t before = places.size();
    std::vector<SecretScan::Place> found;
    const auto scan = [&](std::string_view text, std::size_t begin) {
      SecretScan one(mask_);
      one.push(text);
      for (const SecretScan::Place& place : one.finish()) found.push_back({begin + place.begin, begin + place.end});
    };
    for (const TarHeader::Field& field : TarHeader::kTexts) scan(block.substr(field.at, field.size), field.at);
    const TarHeader::Field name = TarHeader::kTexts[0], prefix = TarHeader::kTexts[4];
    const std::string_view first = block.substr(prefix.at, prefix.size);
    const std::size_t length = std::min(first.find('\0'), first.size());
    SecretScan whole(mask_);
    whole.push(std::string(first.substr(0, length)) + "/" + std::string(block.substr(name.at, name.size)));
    for (const SecretScan::Place& place : whole.finish())
      for (std::uint64_t i = place.begin; i < place.end; ++i) {
        if (i == length) continue;
        const std::uint64_t byte = i < length ? prefix.at + i : name.at + i - length - 1;
        found.push_back({byte, byte + 1});
      }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    std::uint64_t covered = 0;
    for (const SecretScan::Place& place : found) {
      const std::uint64_t begin = std::max(place.begin, covered);
      if (begin >= place.end) continue;
      places.push_back({at + begin, at + place.end});
      covered = place.end;
    }
    return places.size() > before;
  }

  // Each line has a checksum of its own, which is made anew.
  void network() {
    const UniqueFd log = trajectory_.beside_if_there(kNetworkLog);
    if (!log) return;
    Content to(*this, kNetworkLog);
    std::uint32_t checksum = 0;
    for_each_line(log.get(), kLongestLine, [&](std::string_view text) {
      Json json = parse_json(text, kNetworkLog);
      json.erase("crc");
      to.append(sealed_line(canonical_json(mask_.json(json)), checksum));
      return true;
    });
    to.finish();
  }

  const Trajectory& trajectory_;
  const SecretMask mask_;
  const int fd_;
  std::string buffer_;
  std::uint32_t checksum_ = 0;
  Exported told_;
};

}  // namespace

Exported export_trajectory(const Trajectory& trajectory, const SecretMask& mask, int fd) {
  return Export(trajectory, mask, fd).run();
}

}  // namespace dsec::engine
