#include "core/remote/edge/metrics.h"

#include <sstream>

#include "core/base/version.h"

namespace dsec::remote {
namespace {

void head(std::ostream& out, const std::string& name, const char* type, const std::string& help) {
  out << "# HELP " << name << ' ' << help << "\n# TYPE " << name << ' ' << type << '\n';
}

}  // namespace

void Metrics::count(const std::string& call, int status, std::uint64_t received, std::uint64_t sent,
                    std::chrono::microseconds took) {
  const std::lock_guard lock(mutex_);
  Calls& calls = calls_[call];
  ++calls.by_status[status];
  ++calls.count;
  calls.seconds += static_cast<double>(took.count()) / 1e6;
  received_ += received;
  sent_ += sent;
}

std::shared_ptr<void> Metrics::open_stream() {
  const std::lock_guard lock(mutex_);
  ++streams_;
  return {this, [](Metrics* metrics) {
            const std::lock_guard guard(metrics->mutex_);
            --metrics->streams_;
          }};
}

std::string Metrics::text(const std::string& edge,
                          const std::map<std::string, std::pair<std::string, std::uint64_t>>& gauges) const {
  const std::lock_guard lock(mutex_);
  std::ostringstream out;
  head(out, "dsec_edge_info", "gauge", "The edge.");
  out << "dsec_edge_info{name=\"" << edge << "\",version=\"" << kVersion << "\"} 1\n";
  head(out, "dsec_edge_requests_total", "counter", "Requests that have ended, by call and HTTP status.");
  for (const auto& [call, calls] : calls_)
    for (const auto& [status, count] : calls.by_status)
      out << "dsec_edge_requests_total{call=\"" << call << "\",status=\"" << status << "\"} " << count << '\n';
  head(out, "dsec_edge_request_seconds", "summary", "How long requests took, streams with all their life.");
  for (const auto& [call, calls] : calls_)
    out << "dsec_edge_request_seconds_sum{call=\"" << call << "\"} " << calls.seconds
        << "\ndsec_edge_request_seconds_count{call=\"" << call << "\"} " << calls.count << '\n';
  head(out, "dsec_edge_received_bytes_total", "counter", "Bytes of bodies and streams that came.");
  out << "dsec_edge_received_bytes_total " << received_ << '\n';
  head(out, "dsec_edge_sent_bytes_total", "counter", "Bytes of answers and streams that were sent.");
  out << "dsec_edge_sent_bytes_total " << sent_ << '\n';
  head(out, "dsec_edge_streams", "gauge", "Commands and ports that clients are connected to.");
  out << "dsec_edge_streams " << streams_ << '\n';
  for (const auto& [name, gauge] : gauges) {
    head(out, name, "gauge", gauge.first);
    out << name << ' ' << gauge.second << '\n';
  }
  return out.str();
}

}  // namespace dsec::remote
