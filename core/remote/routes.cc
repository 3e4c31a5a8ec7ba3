#include "core/remote/routes.h"

#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "core/http/url.h"

namespace dsec::remote {
namespace {

constexpr Route kRoutes[] = {
    {Call::Health, "health", "GET", "/v1/health"},
    {Call::Metrics, "metrics", "GET", "/v1/metrics"},
    {Call::Create, "create", "POST", "/v1/sandboxes"},
    {Call::List, "list", "GET", "/v1/sandboxes"},
    {Call::Inspect, "inspect", "GET", "/v1/sandboxes/{id}"},
    {Call::Remove, "remove", "DELETE", "/v1/sandboxes/{id}"},
    {Call::Update, "update", "PATCH", "/v1/sandboxes/{id}"},
    {Call::Wait, "wait", "GET", "/v1/sandboxes/{id}/end"},
    {Call::Stop, "stop", "POST", "/v1/sandboxes/{id}/stop"},
    {Call::Pause, "pause", "POST", "/v1/sandboxes/{id}/pause"},
    {Call::Resume, "resume", "POST", "/v1/sandboxes/{id}/resume"},
    {Call::Exec, "exec", "POST", "/v1/sandboxes/{id}/commands"},
    {Call::Commands, "commands", "GET", "/v1/sandboxes/{id}/commands"},
    {Call::Attach, "attach", "GET", "/v1/sandboxes/{id}/commands/{exec_id}/output"},
    {Call::Signal, "signal", "POST", "/v1/sandboxes/{id}/commands/{exec_id}/signal"},
    {Call::OpenSession, "openSession", "POST", "/v1/sandboxes/{id}/sessions"},
    {Call::Sessions, "sessions", "GET", "/v1/sandboxes/{id}/sessions"},
    {Call::RunInSession, "runInSession", "POST", "/v1/sandboxes/{id}/sessions/{session}/commands"},
    {Call::CloseSession, "closeSession", "DELETE", "/v1/sandboxes/{id}/sessions/{session}"},
    {Call::Logs, "logs", "GET", "/v1/sandboxes/{id}/logs"},
    {Call::Stats, "stats", "GET", "/v1/sandboxes/{id}/stats"},
    {Call::Changes, "changes", "GET", "/v1/sandboxes/{id}/changes"},
    {Call::ChangeStat, "changeStat", "GET", "/v1/sandboxes/{id}/changes/stat"},
    {Call::ChangeContent, "changeContent", "GET", "/v1/sandboxes/{id}/changes/content"},
    {Call::Snapshot, "snapshot", "POST", "/v1/sandboxes/{id}/snapshot"},
    {Call::Fork, "fork", "POST", "/v1/sandboxes/{id}/fork"},
    {Call::CopyOut, "copyOut", "GET", "/v1/sandboxes/{id}/files"},
    {Call::CopyIn, "copyIn", "PUT", "/v1/sandboxes/{id}/files"},
    {Call::Watch, "watch", "GET", "/v1/sandboxes/{id}/events"},
    {Call::Http, "http", "POST", "/v1/sandboxes/{id}/ports/{port}/http"},
    {Call::Connect, "connect", "GET", "/v1/sandboxes/{id}/ports/{port}/stream"},
    {Call::Screenshot, "screenshot", "POST", "/v1/sandboxes/{id}/screen/picture"},
    {Call::ScreenInput, "screenInput", "POST", "/v1/sandboxes/{id}/screen/input"},
    {Call::ConnectScreen, "connectScreen", "GET", "/v1/sandboxes/{id}/screen/stream"},
    {Call::Network, "network", "GET", "/v1/sandboxes/{id}/network"},
    {Call::SetNetwork, "setNetwork", "PATCH", "/v1/sandboxes/{id}/network"},
    {Call::NetworkLog, "networkLog", "GET", "/v1/sandboxes/{id}/network/log"},
    {Call::Recorded, "recorded", "GET", "/v1/sandboxes/{id}/operations/{op_id}"},
    {Call::Trajectories, "trajectories", "GET", "/v1/trajectories"},
    {Call::Trajectory, "trajectory", "GET", "/v1/trajectories/{id}"},
    {Call::RemoveTrajectory, "removeTrajectory", "DELETE", "/v1/trajectories/{id}"},
    {Call::Layer, "layer", "GET", "/v1/layers/{ref}"},
};

std::vector<std::string_view> segments(std::string_view path) {
  std::vector<std::string_view> found;
  for (std::size_t begin = 1; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    found.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return found;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

std::string decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high < 0 ? -1 : hex_digit(text[i + 2]);
    out += low < 0 ? text[i] : static_cast<char>(high * 16 + low);
    if (low >= 0) i += 2;
  }
  return out;
}

bool is_parameter(std::string_view segment) { return segment.starts_with('{'); }
std::string parameter_name(std::string_view segment) { return std::string(segment.substr(1, segment.size() - 2)); }

bool matches(std::string_view pattern, const std::vector<std::string_view>& path, Parameters& parameters) {
  const std::vector<std::string_view> wanted = segments(pattern);
  if (wanted.size() != path.size()) return false;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (is_parameter(wanted[i]) ? path[i].empty() : wanted[i] != path[i]) return false;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (is_parameter(wanted[i])) parameters[parameter_name(wanted[i])] = decoded(path[i]);
  return true;
}

// What stands in the path counts: it decides whom a call is about.
void add_query(std::string_view query, Parameters& parameters) {
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    if (!pair.empty())
      parameters.emplace(decoded(pair.substr(0, equals)), decoded(pair.substr(std::min(equals + 1, pair.size()))));
  }
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }

const Route& route_of(Call call) { return kRoutes[static_cast<std::size_t>(call)]; }

std::string target_of(Call call, const Parameters& parameters) {
  Parameters rest = parameters;
  std::string target;
  for (const std::string_view segment : segments(route_of(call).path)) {
    target += '/';
    if (!is_parameter(segment)) {
      target += segment;
      continue;
    }
    const auto found = rest.find(parameter_name(segment));
    if (found == rest.end() || found->second.empty()) throw usage_error("no " + parameter_name(segment) + " is given");
    target += http::percent_encode(found->second);
    rest.erase(found);
  }
  char before = '?';
  for (const auto& [name, value] : rest) {
    target += before + http::percent_encode(name) + "=" + http::percent_encode(value);
    before = '&';
  }
  return target;
}

Found find_route(std::string_view method, std::string_view target) {
  const std::size_t mark = std::min(target.find('?'), target.size());
  Found found;
  if (!target.starts_with('/')) return found;
  const std::vector<std::string_view> path = segments(target.substr(0, mark));
  for (const Route& route : kRoutes) {
    Parameters parameters;
    if (!matches(route.path, path, parameters)) continue;
    found.route = &route;
    found.parameters = std::move(parameters);
    found.method_differs = method != route.method;
    if (!found.method_differs) break;
  }
  if (found.route) add_query(target.substr(std::min(mark + 1, target.size())), found.parameters);
  return found;
}

}  // namespace dsec::remote
