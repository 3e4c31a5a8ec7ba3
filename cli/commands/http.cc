#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/exec_json.h"
#include "cli/invocation.h"
#include "cli/sandbox_flags.h"
#include "cli/wiring.h"
#include "core/base/error.h"
#include "core/base/files.h"

namespace dsec::cli {
namespace {

struct Options {
  std::string sandbox, target, method, op_id;
  std::vector<std::string> headers;
  std::optional<std::string> data;
  bool include = false, fail = false;
  std::optional<std::chrono::milliseconds> timeout;
};

struct Target {
  std::uint16_t port;
  std::string path;
};

// "8080", "8080/index.html", ":8080/…"
Target parse_target(const std::string& text) {
  const std::size_t begin = text.starts_with(':') ? 1 : 0;
  const std::size_t slash = std::min(text.find_first_of("/?", begin), text.size());
  const std::string port = text.substr(begin, slash - begin);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(port) > 65535 || std::stoi(port) == 0)
    throw usage_error(quote(text) + " does not begin with a port").hint("dsec http SANDBOX 8080/index.html");
  const std::string path = text.substr(slash);
  return {static_cast<std::uint16_t>(std::stoi(port)), path.starts_with('/') ? path : "/" + path};
}

std::string body_of(const std::string& data) {
  if (data == "@-") return read_all(STDIN_FILENO);
  if (data.starts_with('@')) return read_file(data.substr(1));
  return data;
}

void run(const Options& options, Invocation& call) {
  const Target target = parse_target(options.target);
  engine::HttpRequest request{.method = options.method.empty() ? (options.data ? "POST" : "GET") : options.method,
                              .path = target.path,
                              .headers = options.headers,
                              .body = options.data ? body_of(*options.data) : "",
                              .host = "localhost:" + std::to_string(target.port),
                              .timeout = options.timeout,
                              .operation = operation_context(options.op_id)};
  engine::HttpResponse answer;
  std::string content;
  const auto on_head = [&](const engine::HttpResponse& head) {
    answer = head;
    if (!options.include || call.out().json()) return;
    std::string text = "HTTP/1.1 " + std::to_string(head.status) + " " + head.reason + "\n";
    for (const auto& [name, value] : head.headers) text += name + ": " + value + "\n";
    call.out().raw(text + "\n");
  };
  const auto on_body = [&](std::string_view part) {
    if (call.out().json())
      content += part;
    else
      call.out().raw(part);
  };
  attempt("cannot get " + request.path + " from port " + std::to_string(target.port) + " of the sandbox", [&] {
    call.wiring().engine().http(options.sandbox, target.port, request, {on_head, on_body});
  });
  if (call.out().json()) {
    Json json = bytes_to_json(content);
    json["status"] = answer.status;
    json["reason"] = answer.reason;
    json["headers"] = Json::array();
    for (const auto& [name, value] : answer.headers) json["headers"].push_back({printable(name), printable(value)});
    call.out().json(json);
  }
  if (options.fail && answer.status >= 400)
    throw failure("the server answered " + std::to_string(answer.status) + " " + printable(answer.reason));
}

}  // namespace

void add_http(Command& root) {
  auto options = std::make_shared<Options>();
  Command& verb = root.verb("http", "Send a request to an HTTP server in a sandbox");
  verb.reaches(Command::Reach::Context);
  verb.positional("SANDBOX", options->sandbox, "Id, unique beginning of an id, or name");
  verb.positional("PORT[/PATH]", options->target, "Where the server listens inside, and what to ask for");
  verb.option("-X,--request", "METHOD", options->method, "Method (default: GET, with --data POST)");
  verb.options("-H,--header", "NAME: VALUE", options->headers, "Send this header");
  verb.option("-d,--data", "DATA", options->data, "Send this body; @FILE: that of a file, @-: standard input");
  verb.flag("-i,--include", options->include, "Print status and headers, too");
  verb.flag("-f,--fail", options->fail, "Exit with 1 when the status is 400 or more");
  verb.duration("--timeout", options->timeout, "Give up when nothing comes for so long");
  declare_op_id(verb, options->op_id);
  verb.note("The sandbox needs no network: the connection is made on its own loopback.");
  verb.example("dsec http web 8080/health");
  verb.example("dsec http web -X PUT -d @data.json -H 'Content-Type: application/json' 8080/items/1");
  verb.runs([options](Invocation& call) { run(*options, call); });
}

}  // namespace dsec::cli
