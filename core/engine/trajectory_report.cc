#include "core/engine/trajectory_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/base/iso_time.h"
#include "core/base/json_bytes.h"
#include "core/base/units.h"
#include "core/base/version.h"
#include "core/engine/file_lines.h"
#include "core/engine/masked_output.h"
#include "core/engine/network_log.h"
#include "core/engine/report_page.h"
#include "core/engine/tar_entries.h"
#include "core/engine/trajectory_diff.h"

namespace dsec::engine {
namespace {
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::system_clock;

// Of each stream of an operation, and of all operations together: a browser has to hold it.
constexpr std::size_t kMostOutput = 256u << 10, kMostOfAll = 64u << 20;
// What stands there before the rest has to be unfolded.
constexpr std::size_t kLines = 40, kBytes = 8u << 10;
constexpr std::size_t kMostFiles = 200, kMostEvents = 2000, kMostEventsOfOne = 20, kMostBars = 5000;
constexpr double kWidth = 1000, kRow = 14;
constexpr std::size_t kLanes = 12;

std::string tag(std::string_view name, std::string_view attributes, std::string_view html) {
  std::string all = "<" + std::string(name);
  if (!attributes.empty()) all.append(" ").append(attributes);
  return all.append(">").append(html).append("</").append(name).append(">");
}

std::string hash_source(std::string_view text) {
  std::string bytes;
  const std::string hex = Digest::of(text).hex();
  for (std::size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return "'sha256-" + base64(bytes) + "'";
}

std::string decimal(double value) {
  char text[32];
  ::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

std::string duration(microseconds length) {
  return length < milliseconds(1) ? std::to_string(length.count()) + "us"
                                  : format_duration(std::chrono::duration_cast<milliseconds>(length));
}

// "failed": told as such; "odd": nobody knows.
std::string_view class_of(const Operation& operation) {
  if (!operation.done || operation.done->outcome == Operation::Outcome::Interrupted) return "odd";
  if (operation.done->outcome == Operation::Outcome::Failed) return "failed";
  if (operation.kind != "exec" && operation.kind != "session") return "ok";
  const Json result = parse_json(operation.done->result, "result");
  if (result.contains("combined")) return "ok";
  return exec_result_of(operation).shell_code() == 0 ? "ok" : "failed";
}

system_clock::time_point end_of(const Operation& operation) {
  return operation.done ? operation.started + operation.done->duration : operation.started;
}

class Report {
 public:
  Report(const ReportContent& content, const SecretMask& mask, const ReportWords& words,
         const std::function<void(std::string_view)>& write)
      : trajectory_(content.trajectory),
        against_(content.against),
        files_(content.files),
        mask_(mask.with(SecretMask::Form::SameLength)),
        words_(words),
        write_(write) {}

  void run() {
    read_network();
    if (against_) all_pairs_ = diff_trajectories(trajectory_, *against_);
    for (const OperationPair& pair : all_pairs_)
      if (pair.left) pairs_.emplace(pair.left->seq, &pair);
    head();
    facts();
    timeline();
    operations();
    if (!events_.empty() || !network_damage_.empty()) network();
    if (against_) differences();
    put("<footer><p>Made by dsec " + html_text(kVersion) + "</p></footer>\n<script>" + kReportScript +
        "</script>\n</body>\n</html>\n");
  }

 private:
  void put(std::string_view html) { write_(html); }

  std::string masked(std::string text) const { return html_text(mask_.text(std::move(text))); }

  void head() {
    const std::string policy = "default-src 'none'; style-src " + hash_source(kReportStyle) + "; script-src " +
                               hash_source(kReportScript) + "; base-uri 'none'; form-action 'none'";
    put("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"" +
        policy +
        "\">\n<meta name=\"viewport\" content=\"width=device-width\">\n<meta name=\"referrer\" "
        "content=\"no-referrer\">\n<title>dsec " +
        html_text(trajectory_.header.id) + "</title>\n<style>" + kReportStyle + "</style>\n</head>\n<body>\n");
  }

  void facts() {
    const TrajectoryHeader header = mask_.header(trajectory_.header);
    put("<a class=\"skip\" href=\"#operations\">To the operations</a>\n<header><h1>" + html_text(header.id) +
        "</h1>\n<dl>");
    const auto fact = [&](std::string_view name, const std::string& html) {
      put(tag("dt", "", name) + tag("dd", "", html) + "\n");
    };
    if (!header.spec.name.empty()) fact("Name", html_text(header.spec.name));
    if (!header.environment.empty()) fact("Environment", html_text(header.environment));
    for (const TrajectoryHeader::Layer& layer : header.layers)
      fact("Layer", html_text(layer.name) + " <code>" + layer.digest.brief() + "</code>");
    fact("Made", html_text(format_iso_time(header.created)));
    if (!header.source.empty()) fact("Imported from", html_text(header.source));
    std::size_t failed = 0, odd = 0;
    microseconds busy{};
    for (const Operation& operation : trajectory_.operations) {
      failed += class_of(operation) == "failed";
      odd += class_of(operation) == "odd";
      if (operation.done) busy += operation.done->duration;
    }
    fact("Operations", "<span id=\"total\">" + std::to_string(trajectory_.operations.size()) +
                           "</span>, <span id=\"failed\">" + std::to_string(failed) +
                           "</span> failed, <span id=\"odd\">" + std::to_string(odd) + "</span> of unknown outcome, " +
                           html_text(duration(busy)) + " together");
    if (!trajectory_.damage.empty()) fact("Damage", html_text(trajectory_.damage));
    put("</dl>\n<nav aria-label=\"Parts\"><p><a href=\"#timeline\">Timeline</a><a href=\"#operations\">Operations</a>");
    if (!events_.empty()) put("<a href=\"#network\">Network</a>");
    if (against_) put("<a href=\"#differences\">Differences</a>");
    put("</p></nav></header>\n<main>\n");
  }

  // A bar for each, below each other where they went on at the same time.
  void timeline() {
    put("<section id=\"timeline\"><h2>Timeline</h2>\n");
    const std::vector<Operation>& all = trajectory_.operations;
    if (all.empty()) return put("<p>Nothing was done.</p></section>\n");
    const system_clock::time_point begin = all.front().started;
    system_clock::time_point end = begin + microseconds(1);
    for (const Operation& operation : all) end = std::max(end, end_of(operation));
    const double length = static_cast<double>((end - begin).count());
    const auto place = [&](system_clock::time_point time) {
      return std::clamp(static_cast<double>((time - begin).count()) / length, 0.0, 1.0) * (kWidth - 4);
    };
    std::string bars;
    std::vector<double> lanes;
    std::size_t count = 0;
    for (const Operation& operation : all) {
      if (++count > kMostBars) break;
      const double from = place(operation.started), to = std::max(place(end_of(operation)), from + 2);
      std::size_t lane = 0;
      while (lane < lanes.size() && lanes[lane] > from && lane + 1 < kLanes) ++lane;
      if (lane == lanes.size()) lanes.push_back(0);
      lanes[lane] = to;
      const std::string number = std::to_string(operation.seq);
      bars += "<a class=\"" + std::string(class_of(operation)) + "\" href=\"#op-" + number + "\"><title>" + number +
              " " + html_text(words_.request(mask_.operation(operation))) + "</title><rect x=\"" + decimal(from + 2) +
              "\" y=\"" + decimal(static_cast<double>(lane) * kRow + 4) + "\" width=\"" +
              decimal(std::min(to, kWidth - 2) - from) + "\" height=\"10\"></rect></a>\n";
    }
    const double height = static_cast<double>(lanes.size()) * kRow + 26;
    put("<svg viewBox=\"0 0 " + decimal(kWidth) + " " + decimal(height) + "\" role=\"group\" aria-label=\"" +
        std::to_string(std::min(count, kMostBars)) + " operations in " +
        html_text(duration(std::chrono::duration_cast<microseconds>(end - begin))) + "\">\n" + bars);
    put("<text x=\"4\" y=\"" + decimal(height - 6) + "\">" + html_text(format_iso_time(begin)) + "</text><text x=\"" +
        decimal(kWidth - 4) + "\" y=\"" + decimal(height - 6) + "\" text-anchor=\"end\">+" +
        html_text(duration(std::chrono::duration_cast<microseconds>(end - begin))) + "</text></svg>\n");
    if (count > kMostBars) put("<p>The first " + std::to_string(kMostBars) + " operations.</p>\n");
    put("</section>\n");
  }

  void operations() {
    put("<section id=\"operations\"><h2>Operations</h2>\n<div class=\"controls\"><button "
        "data-filter=\"all\">All</button>"
        "<button data-filter=\"failed\">Failed</button>");
    if (against_) put("<button data-filter=\"changed\">Different</button>");
    put("<button data-unfold=\"all\">Unfold (e)</button><button data-unfold=\"none\">Fold (f)</button><span "
        "aria-live=\"polite\"><span id=\"shown\"></span> shown; j and k go to the next and the one "
        "before</span></div>\n");
    for (const Operation& operation : trajectory_.operations) one(operation);
    put("</section>\n");
  }

  void one(const Operation& operation) {
    const Operation hidden = mask_.operation(operation);
    const std::string number = std::to_string(operation.seq);
    const auto pair = pairs_.find(operation.seq);
    const bool differs = pair != pairs_.end() && !pair->second->same();
    put("<article class=\"op " + std::string(class_of(operation)) + (differs ? " changed" : "") + "\" id=\"op-" +
        number + "\" tabindex=\"0\" aria-label=\"Operation " + number + "\">\n<h3><a href=\"#op-" + number + "\">" +
        number + "</a><code>" + html_text(words_.request(hidden)) + "</code><span class=\"outcome " +
        (class_of(operation) == "ok" ? "good" : "bad") + "\">" + html_text(words_.outcome(trajectory_, hidden)) +
        "</span>");
    const auto since = std::chrono::duration_cast<microseconds>(operation.started - trajectory_.header.created);
    put("<span class=\"at\">+" + html_text(duration(std::max(since, microseconds(0)))) + "</span>");
    if (operation.done) put("<span class=\"took\">took " + html_text(duration(operation.done->duration)) + "</span>");
    put("</h3>\n");
    details("Request and result", false, [&] {
      std::string text = "request " + parse_json(hidden.request, "request").dump(1, ' ', false, kReplace);
      if (hidden.done) text += "\nresult " + parse_json(hidden.done->result, "result").dump(1, ' ', false, kReplace);
      if (operation.named()) text = "op-id " + hidden.op_id + "\n" + text;
      put(tag("pre", "", html_text(text.substr(0, kMostOutput))));
    });
    input(operation);
    output(operation);
    files(operation);
    written(operation);
    events_of(operation);
    if (differs) difference(*pair->second);
    put("</article>\n");
  }

  template <typename Content>
  void details(const std::string& summary, bool open, Content&& content) {
    put(std::string("<details") + (open ? " open" : "") + "><summary>" + summary + "</summary>");
    content();
    put("</details>\n");
  }

  void input(const Operation& operation) {
    if (!operation.done || (operation.done->stdin_data.empty() && !operation.done->stdin_file)) return;
    const std::string given = trajectory_.input(operation);
    details("Standard input, " + html_text(format_size(given.size())), false, [&] {
      // What is cut off may have been in the middle of a secret.
      SecretScan scan(mask_);
      std::string text = given.substr(0, kMostOutput);
      scan.push(text);
      scan.gap();
      blank(text, 0, scan.finish());
      put(tag("pre", "", html_text(text)));
    });
  }

  void output(const Operation& operation) {
    if (!operation.done) return;
    if (told_ >= kMostOfAll) {
      if (!trajectory_.output(operation, 0).empty() || !trajectory_.output(operation, 1).empty())
        put("<p>Its output is left out: the page has " + html_text(format_size(kMostOfAll)) +
            " of others already.</p>\n");
      return;
    }
    const std::vector<OutputPiece> pieces = masked_output(trajectory_, operation, mask_, kMostOutput);
    if (pieces.empty()) return;
    std::string shown, folded;
    std::size_t lines = 0, bytes = 0, more = 0;
    for (const OutputPiece& piece : pieces) {
      told_ += piece.data.size();
      // To the end of the line that is the last to be shown.
      std::size_t split = 0;
      while (split < piece.data.size() && lines < kLines && bytes < kBytes) {
        lines += piece.data[split] == '\n';
        ++split, ++bytes;
      }
      // A character is not torn apart.
      while (split < piece.data.size() && (static_cast<unsigned char>(piece.data[split]) & 0xc0) == 0x80) ++split;
      const std::string_view all = piece.data;
      shown += piece_html(piece, all.substr(0, split));
      folded += piece_html(piece, all.substr(split));
      more += static_cast<std::size_t>(std::count(all.begin() + static_cast<std::ptrdiff_t>(split), all.end(), '\n'));
    }
    put("<h4>Output</h4>" + tag("pre", "class=\"output\"", shown) + "\n");
    if (!folded.empty())
      details(std::to_string(more) + " more lines", false, [&] { put(tag("pre", "class=\"output\"", folded)); });
  }

  static std::string piece_html(const OutputPiece& piece, std::string_view text) {
    if (text.empty()) return "";
    const std::string html = html_text(text);
    if (piece.mark) return tag("span", "class=\"mark\"", html);
    return piece.stream ? tag("span", "class=\"stderr\"", html) : html;
  }

  void files(const Operation& operation) {
    const UniqueFd content = trajectory_.content(operation);
    if (!content) return;
    std::string rows;
    std::size_t count = 0;
    for_each_tar_entry(content.get(), [&](const TarEntry& entry) {
      if (++count > kMostFiles) return;
      const char* const kind = entry.type == '5'   ? "directory"
                               : entry.type == '2' ? "link"
                               : entry.type == '1' ? "hard link"
                                                   : "file";
      rows += "<tr><td><code>" + masked(entry.path) + "</code></td><td>" + kind + "</td><td>" +
              html_text(entry.type == '0' ? format_size(entry.size) : "") + "</td></tr>\n";
    });
    const bool in = operation.kind == "write";
    details(std::to_string(count) + (in ? " files brought in" : " files taken out"), count <= 20, [&] {
      put("<table><thead><tr><th>File</th><th>Kind</th><th>Size</th></tr></thead><tbody>" + rows + "</tbody></table>");
      if (count > kMostFiles) put("<p>And " + std::to_string(count - kMostFiles) + " more.</p>");
    });
  }

  void written(const Operation& operation) {
    const auto found = files_.find(operation.seq);
    if (found == files_.end() || found->second.written.empty()) return;
    const ReplayedFiles& files = found->second;
    std::string rows;
    std::size_t count = 0;
    for (const WrittenFile& file : files.written) {
      if (++count > kMostFiles) break;
      static constexpr const char* kWords[] = {"added", "changed", "removed"};
      rows += "<tr><td><code>" + masked(file.change.path) + "</code></td><td>" +
              kWords[static_cast<unsigned>(file.change.kind)] + "</td><td>" +
              html_text(file.size ? format_size(file.size) : "") + "</td></tr>\n";
    }
    const std::size_t all = files.written.size();
    details(std::to_string(all) + (all == 1 ? " file written, in a replay" : " files written, in a replay") +
                (files.same ? "" : " that came out otherwise"),
            all <= 20, [&] {
              put("<table><thead><tr><th>File</th><th>What</th><th>Size</th></tr></thead><tbody>" + rows +
                  "</tbody></table>");
              if (all > kMostFiles) put("<p>And " + std::to_string(all - kMostFiles) + " more.</p>");
            });
  }

  // The gateway's records: of a directory they are checked, in an export they were.
  void read_network() {
    const auto take = [&](NetworkEvent event) {
      if (events_.size() < kMostEvents) events_.push_back(std::move(event));
      ++event_count_;
    };
    if (!trajectory_.embedded) {
      NetworkLogContents contents = read_network_log(trajectory_.directory);
      network_damage_ = contents.damage;
      for (NetworkEvent& event : contents.events) take(std::move(event));
      return;
    }
    const UniqueFd log = trajectory_.beside_if_there(kNetworkLog);
    if (!log) return;
    try {
      for_each_line(log.get(), 1u << 20, [&](std::string_view line) {
        if (auto event = network_event_from(parse_json(line, kNetworkLog))) take(*std::move(event));
        return true;
      });
    } catch (const Error& bad) {
      network_damage_ = bad.message();
    }
  }

  std::string event_row(const NetworkEvent& event) const {
    const std::string when = html_text(format_iso_time(event.time));
    if (event.lost)
      return "<tr><td>" + when + "</td><td colspan=\"5\">" + std::to_string(event.lost) +
             " records were not kept</td></tr>\n";
    std::string where = event.host;
    if (!event.address.empty()) where += (where.empty() ? "" : " ") + event.address;
    if (event.port) where += ":" + std::to_string(event.port);
    std::string asked;
    for (const std::string& request : event.http) asked += (asked.empty() ? "" : "\n") + request;
    const bool allowed = event.verdict == "allow";
    return "<tr class=\"event\"><td>" + when + "</td><td class=\"" + (allowed ? "good" : "bad") + "\">" +
           html_text(event.verdict) + "</td><td>" + html_text(event.protocol) + "</td><td>" + masked(where) +
           (asked.empty() ? "" : "<br><code>" + masked(asked) + "</code>") + "</td><td>" +
           html_text(format_size(event.sent)) + " / " + html_text(format_size(event.received)) + "</td><td>" +
           masked(event.reason) + "</td></tr>\n";
  }

  static constexpr const char* kEventHead =
      "<div class=\"scroll\"><table><thead><tr><th>When</th><th>Verdict</th><th>Protocol</th><th>What</th><th>Sent / "
      "received</th><th>Why</th></tr></thead><tbody>";

  void events_of(const Operation& operation) {
    if (!operation.done || events_.empty()) return;
    std::string rows;
    std::size_t count = 0;
    for (const NetworkEvent& event : events_) {
      if (event.lost || event.time < operation.started || event.time - event.duration > end_of(operation)) continue;
      if (++count <= kMostEventsOfOne) rows += event_row(event);
    }
    if (count == 0) return;
    details(std::to_string(count) + " network requests meanwhile", false, [&] {
      put(kEventHead + rows + "</tbody></table></div>");
      if (count > kMostEventsOfOne) put("<p>And " + std::to_string(count - kMostEventsOfOne) + " more.</p>");
    });
  }

  void network() {
    put("<section id=\"network\"><h2>Network</h2>\n<p><span id=\"events\">" + std::to_string(event_count_) +
        "</span> records.</p>\n" + kEventHead);
    for (const NetworkEvent& event : events_) put(event_row(event));
    put("</tbody></table></div>\n");
    if (event_count_ > events_.size()) put("<p>The first " + std::to_string(events_.size()) + " are shown.</p>\n");
    if (!network_damage_.empty()) put("<p class=\"bad\">" + html_text(network_damage_) + "</p>\n");
    put("</section>\n");
  }

  void difference(const OperationPair& pair) {
    if (!pair.right) return put("<h4>Only here</h4>\n");
    put("<h4>Operation " + std::to_string(pair.right->seq) + " of the other</h4>\n");
    for (const OperationDifference& one : pair.differences) {
      put("<p>" + html_text(one.what) + "</p>");
      // The whole is masked before it is cut.
      const std::string before = mask_.text(one.left).substr(0, kMostOutput),
                        after = mask_.text(one.right).substr(0, kMostOutput);
      std::string html;
      const std::string text = words_.diff(before, after);
      for (std::string_view rest = text; !rest.empty();) {
        const std::size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
        const std::string_view line = rest.substr(0, end);
        const std::string escaped = html_text(line);
        html += line.front() == '+'   ? tag("span", "class=\"add\"", escaped)
                : line.front() == '-' ? tag("span", "class=\"del\"", escaped)
                                      : escaped;
        rest.remove_prefix(end);
      }
      put(tag("pre", "class=\"diff\"", html) + "\n");
    }
  }

  void differences() {
    std::size_t same = 0, different = 0, left = 0, right = 0;
    for (const OperationPair& pair : all_pairs_) {
      same += pair.same();
      different += pair.left && pair.right && !pair.same();
      left += !pair.right;
      right += !pair.left;
    }
    put("<section id=\"differences\"><h2>Differences to " + html_text(against_->header.id) +
        "</h2>\n<p><span id=\"same\">" + std::to_string(same) + "</span> the same, <span id=\"different\">" +
        std::to_string(different) + "</span> different, <span id=\"left\">" + std::to_string(left) +
        "</span> only here, <span id=\"right\">" + std::to_string(right) + "</span> only in the other.</p>\n<ul>");
    for (const OperationPair& pair : all_pairs_) {
      if (pair.same()) continue;
      if (pair.left) {
        const std::string number = std::to_string(pair.left->seq);
        put("<li><a href=\"#op-" + number + "\">" + number + "</a> <code>" +
            html_text(words_.request(mask_.operation(*pair.left))) + "</code>" + (pair.right ? "" : " only here") +
            "</li>\n");
      } else {
        const Operation hidden = mask_.operation(*pair.right);
        put("<li>" + std::to_string(pair.right->seq) + " of the other only: <code>" +
            html_text(words_.request(hidden)) + "</code> " + html_text(words_.outcome(*against_, hidden)) + "</li>\n");
      }
    }
    put("</ul></section>\n");
  }

  static constexpr auto kReplace = Json::error_handler_t::replace;
  const Trajectory& trajectory_;
  const Trajectory* const against_;
  const std::map<std::uint64_t, ReplayedFiles>& files_;
  const SecretMask mask_;
  const ReportWords& words_;
  const std::function<void(std::string_view)>& write_;
  std::vector<OperationPair> all_pairs_;
  std::map<std::uint64_t, const OperationPair*> pairs_;  ///< by number of the operation here
  std::vector<NetworkEvent> events_;
  std::uint64_t event_count_ = 0;
  std::string network_damage_;
  std::size_t told_ = 0;  ///< bytes of outputs
};

// Of a colour, "\x1b[1;31m", its length; 0: it is none.
std::size_t colour_length(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  std::size_t end = 2;
  while (end < text.size() && end < 32 && ((text[end] >= '0' && text[end] <= '9') || text[end] == ';')) ++end;
  return end < text.size() && text[end] == 'm' ? end + 1 : 0;
}

bool turns_direction(std::string_view character) {
  static const std::set<std::string_view> kThese{"\u202a", "\u202b", "\u202c", "\u202d", "\u202e",
                                                 "\u2066", "\u2067", "\u2068", "\u2069"};
  return kThese.contains(character);
}

}  // namespace

std::string html_text(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string html;
  html.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    const auto lead = static_cast<unsigned char>(text.front());
    std::size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (const std::size_t colour = colour_length(text)) {
      text.remove_prefix(colour);
      continue;
    }
    if (text.starts_with("\r\n")) text.remove_prefix(1);
    const std::string_view character = text.substr(0, length);
    const bool control = (lead < 0x20 && text.front() != '\n' && text.front() != '\t') || lead == 0x7f;
    if (control || !is_utf8(character) || turns_direction(character)) {
      if (!is_utf8(character)) length = 1;
      for (const char c : text.substr(0, length)) {
        const auto byte = static_cast<unsigned char>(c);
        html.append("\\x").append(1, kHex[byte >> 4]).append(1, kHex[byte & 15]);
      }
    } else {
      switch (text.front()) {
        case '&':
          html += "&amp;";
          break;
        case '<':
          html += "&lt;";
          break;
        case '>':
          html += "&gt;";
          break;
        case '"':
          html += "&quot;";
          break;
        case '\'':
          html += "&#39;";
          break;
        default:
          html += character;
      }
    }
    text.remove_prefix(std::min(length, text.size()));
  }
  return html;
}

void write_report(const ReportContent& content, const SecretMask& mask, const ReportWords& words,
                  const std::function<void(std::string_view)>& write) {
  Report(content, mask, words, write).run();
}

}  // namespace dsec::engine
