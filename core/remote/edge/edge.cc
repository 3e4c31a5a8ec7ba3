#include "core/remote/edge/edge.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/digest.h"
#include "core/base/error.h"
#include "core/base/iso_time.h"
#include "core/base/version.h"
#include "core/remote/edge/calls.h"
#include "core/remote/edge/metrics.h"
#include "core/remote/edge/pumps.h"
#include "core/remote/edge/readiness.h"
#include "core/remote/edge/worker_pool.h"
#include "core/remote/frame.h"
#include "core/remote/values.h"

namespace dsec::remote {
using engine::Engine;
using std::chrono::milliseconds;
namespace {

constexpr unsigned kServerThreads = 2;
constexpr std::size_t kQuickThreads = 8, kSlowThreads = 32, kLongestQueue = 2048;
// Whose the threads are that make sandboxes, which may take long where layers come from afar. No sandbox has this name.
constexpr char kMakers[] = "/";
// A client that waits for the end of a sandbox asks again after so long at the latest, so that what stands between it
// and the edge sees a sign of life.
constexpr milliseconds kLongestWait{50'000};
// From the end of a keeper to the end of its record.
constexpr milliseconds kSettling{10'000};

bool valid_name(std::string_view name) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= 63 && plain(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return plain(c) || c == '.' || c == '_' || c == '-'; });
}

Answer refusal(int status, const Error& error, std::string extra = "") {
  Answer answer = answer_of(error);
  answer.status = status;
  answer.extra = std::move(extra);
  return answer;
}

bool lives(const engine::SandboxInfo& info) {
  return info.keeper_pid != 0 &&
         (info.state == engine::SandboxState::Running || info.state == engine::SandboxState::Paused);
}

}  // namespace

class Edge::Service final : public RequestHandler {
 public:
  Service(Engine& engine, UniqueFd listener, EdgeOptions options)
      : engine_(engine),
        options_(std::move(options)),
        transfers_(options_.transfers),
        quick_(kQuickThreads, kLongestQueue),
        slow_(kSlowThreads, kLongestQueue),
        server_(std::move(listener), *this, options_.limits) {
    server_.start(kServerThreads);
  }
  ~Service() override {
    // What waits for the engine answers through the server, and what the server still holds uses all else.
    server_.drain(milliseconds(0));
    transfers_.finish();
    quick_.finish();
    slow_.finish();
  }

  bool drain(milliseconds time) { return server_.drain(time); }

  Body admit(const HttpHead& head) override {
    const Found found = find_route(head.method, head.target);
    if (!found.route)
      throw Refusal{refusal(404, usage_error("there is no " + quote(head.target) + " here").hint("man 7 dsec-wire"))};
    if (found.method_differs)
      throw Refusal{refusal(405, usage_error(quote(head.target) + " is not for " + quote(head.method)))};
    if (found.route->call != Call::Health && !is_allowed(head.header("authorization")))
      throw Refusal{refusal(401,
                            usage_error("the edge wants a token, and got none or another")
                                .hint("dsec context add NAME URL --token-file FILE"),
                            "WWW-Authenticate: Bearer\r\n")};
    return found.route->call == Call::CopyIn ? Body::Pieces : Body::Whole;
  }

  void handle(std::shared_ptr<Exchange> exchange) override {
    try {
      begin(exchange, Asked(exchange->head(), exchange->body()));
    } catch (const Error& error) {
      exchange->answer(answer_of(error));
    } catch (const std::exception& error) {
      exchange->answer(answer_of(Error(ErrorKind::Internal, error.what())));
    }
  }

  void finished(const HttpHead& head, int status, std::uint64_t received, std::uint64_t sent,
                std::chrono::microseconds took) override {
    const Found found = find_route(head.method, head.target);
    const std::string call = found.route && !found.method_differs ? found.route->name : "none";
    metrics_.count(call, status, received, sent, took);
    if (!options_.log) return;
    Json line = {{"time", format_iso_time(std::chrono::system_clock::now())},
                 {"request", head.id},
                 {"peer", head.peer},
                 {"call", call},
                 {"status", status},
                 {"received", received},
                 {"sent", sent},
                 {"ms", static_cast<double>(took.count()) / 1000}};
    const auto put = [&](const char* key, const std::string& value) {
      if (!value.empty()) line[key] = value;
    };
    const auto sandbox = found.parameters.find("id");
    put("sandbox", sandbox == found.parameters.end() ? "" : sandbox->second);
    put("op_id", head.header("dsec-op-id"));
    options_.log(canonical_json(line));
  }

  Answer refuse(int status, const std::string& why) override {
    return status == 503 ? busy(why) : refusal(status, usage_error(why));
  }

 private:
  // By digests of one length, which tell nothing of how far a guess was right.
  bool is_allowed(const std::string& authorization) const {
    if (!options_.token) return true;
    constexpr std::string_view kScheme = "Bearer ";
    if (!authorization.starts_with(kScheme)) return false;
    const std::string is = Digest::of(std::string_view(authorization).substr(kScheme.size())).hex();
    const std::string should = Digest::of(*options_.token).hex();
    unsigned difference = 0;
    for (std::size_t i = 0; i < is.size(); ++i) difference |= static_cast<unsigned>(is[i] ^ should[i]);
    return difference == 0;
  }

  void begin(const std::shared_ptr<Exchange>& exchange, Asked asked) {
    switch (work_of(asked.route->call)) {
      case Work::AtOnce:
        return exchange->answer({.body = health(), .extra = {}});
      case Work::Quick:
        return answer_by(quick_, exchange, std::move(asked));
      case Work::Slow:
        return answer_by(slow_, exchange, std::move(asked));
      case Work::Command:
        return by(quick_, exchange, asked.text("id"), [this, exchange, asked] {
          pump_command(exchange, start_command(engine_, asked), asked.id(), readiness_, metrics_.open_stream());
        });
      case Work::Bytes:
        return by(quick_, exchange, asked.text("id"), [this, exchange, asked] {
          pump_bytes(exchange, connect_bytes(engine_, asked), readiness_, metrics_.open_stream());
        });
      case Work::Transfer:
        return transfer(exchange, std::move(asked));
      case Work::End:
        return by(quick_, exchange, asked.text("id"), [this, exchange, asked] { await_end(exchange, asked); });
    }
  }

  void by(WorkerPool& pool, const std::shared_ptr<Exchange>& exchange, const std::string& sandbox,
          std::function<void()> work) {
    const bool taken = pool.take(sandbox, [exchange, work = std::move(work)] {
      try {
        work();
      } catch (const Error& error) {
        exchange->answer(answer_of(error));
      } catch (const std::exception& error) {
        exchange->answer(answer_of(Error(ErrorKind::Internal, error.what())));
      }
    });
    if (!taken) exchange->answer(busy("the edge has more to do than it takes on"));
  }

  void answer_by(WorkerPool& pool, const std::shared_ptr<Exchange>& exchange, Asked asked) {
    if (makes_for_command(asked)) return make_for_command(pool, exchange, std::move(asked));
    const bool makes = asked.route->call == Call::Create;
    by(pool, exchange, makes ? kMakers : asked.text("id"), [this, exchange, asked, makes] {
      if (asked.route->call == Call::Metrics)
        return exchange->answer({.type = "text/plain; version=0.0.4", .body = metrics_text(), .extra = {}});
      Json answer = carry_out(engine_, asked);
      exchange->answer({.status = makes ? 201 : 200, .body = canonical_json(answer), .extra = {}});
    });
  }

  // Of a client that alone will know the sandbox, to run one command in it.
  static bool makes_for_command(const Asked& asked) {
    if (asked.route->call != Call::Create || !asked.context.op_id.empty()) return false;
    const auto spec = asked.body->find("spec");
    return spec != asked.body->end() && spec->is_object() && spec->value("made_for_command", Json()) == true;
  }

  // Whoever has gone will not run it, and as long as this process lives gc believes that somebody will.
  void make_for_command(WorkerPool& pool, const std::shared_ptr<Exchange>& exchange, Asked asked) {
    const auto gone = std::make_shared<std::atomic<bool>>(false);
    exchange->on_gone([gone] { *gone = true; });
    by(pool, exchange, kMakers, [this, exchange, asked, gone] {
      if (*gone) return;
      const Json answer = carry_out(engine_, asked);
      if (*gone) return engine_.remove(answer["sandbox"]["id"].get<std::string>(), true);
      exchange->answer({.status = 201, .body = canonical_json(answer), .extra = {}});
    });
  }

  void transfer(const std::shared_ptr<Exchange>& exchange, Asked asked) {
    const Call call = asked.route->call;
    if ((call == Call::CopyIn || call == Call::CopyOut) && !asked.text("path").starts_with('/'))
      throw usage_error("path " + quote(asked.text("path")) + " is not absolute");
    const auto shared = std::make_shared<const Asked>(std::move(asked));
    const auto copy_in = [this, shared](int from) {
      engine_.copy_in(shared->id(), shared->text("path"), from, shared->context);
    };
    const std::string sandbox = shared->text("id");
    if (call == Call::CopyIn) return pump_in(exchange, copy_in, readiness_, transfers_, sandbox);
    const auto copy_out = [this, shared](int to) {
      engine_.copy_out(shared->id(), shared->text("path"), to, shared->context);
    };
    const auto changes = [this, shared](int to) {
      const std::string form = shared->text("form");
      if (form != "patch" && form != "tar") throw usage_error("'form' is patch or tar, and not " + quote(form));
      engine_.diff_content(shared->id(), form == "tar" ? engine::DiffForm::Tar : engine::DiffForm::Patch, to);
    };
    if (call == Call::CopyOut) return pump_out(exchange, Produces::Bytes, copy_out, readiness_, transfers_, sandbox);
    if (call == Call::ChangeContent)
      return pump_out(exchange, Produces::Bytes, changes, readiness_, transfers_, sandbox);
    pump_out(
        exchange, Produces::Frames, [this, shared](int to) { write_frames(engine_, *shared, to); }, readiness_,
        transfers_, sandbox);
  }

  // No thread waits: the keeper's end is what is waited for.
  void await_end(const std::shared_ptr<Exchange>& exchange, const Asked& asked) {
    const engine::SandboxInfo info = engine_.inspect(asked.id());
    UniqueFd keeper;
    if (lives(info)) keeper.reset(static_cast<int>(::syscall(SYS_pidfd_open, info.keeper_pid, 0)));
    // Or it has ended in between, and the number is another process's.
    if (!keeper || !lives(engine_.inspect(info.id))) return tell_end(exchange, info.id);
    const auto longest = static_cast<std::uint64_t>(kLongestWait.count());
    const milliseconds time(std::min(longest, asked.number("timeout_ms").value_or(longest)));
    exchange->in_turn([this, exchange, time, id = info.id, fd = std::make_shared<UniqueFd>(std::move(keeper))] {
      const auto forget = [this, fd] {
        if (*fd) readiness_.forget(fd->get());
        fd->reset();
      };
      // One answer: what comes later on the connection is another request's.
      const auto told = std::make_shared<bool>(false);
      const auto not_yet = [exchange, forget, id, told] {
        if (std::exchange(*told, true)) return;
        exchange->answer({.status = 202, .body = canonical_json({{"id", id}}), .extra = {}});
        forget();
      };
      exchange->on_gone(forget);
      exchange->on_drain(not_yet);
      exchange->after(time, not_yet);
      if (!*fd) return;
      readiness_.when(fd->get(), Ready::ToRead, [this, weak = std::weak_ptr<Exchange>(exchange), id, forget, told] {
        const std::shared_ptr<Exchange> there = weak.lock();
        if (!there) return;
        there->in_turn([this, there, id, forget, told] {
          forget();
          if (std::exchange(*told, true)) return;
          by(quick_, there, id, [this, there, id] { tell_end(there, id); });
        });
      });
    });
  }

  void tell_end(const std::shared_ptr<Exchange>& exchange, const std::string& id) {
    exchange->answer({.body = canonical_json(to_wire(engine_.wait(id, kSettling))), .extra = {}});
  }

  std::string health() const {
    return canonical_json({{"status", "ok"}, {"name", options_.name}, {"version", kVersion}});
  }

  std::string metrics_text() {
    std::map<std::string, std::pair<std::string, std::uint64_t>> gauges = {
        {"dsec_edge_connections", {"Connections of clients.", server_.connections()}},
        {"dsec_edge_transfers", {"Files, logs, watches and the like that are moved.", transfers_.running()}},
        {"dsec_edge_waiting_calls", {"Calls that wait for a thread.", quick_.waiting() + slow_.waiting()}}};
    for (const char* state : {"running", "paused"})
      gauges["dsec_edge_sandboxes_" + std::string(state)] = {"Sandboxes that are " + std::string(state) + ".", 0};
    for (const engine::SandboxInfo& info : engine_.list({})) {
      const auto found = gauges.find("dsec_edge_sandboxes_" + std::string(to_string(info.state)));
      if (found != gauges.end()) ++found->second.second;
    }
    return metrics_.text(options_.name, gauges);
  }

  Engine& engine_;
  const EdgeOptions options_;
  Metrics metrics_;
  Readiness readiness_;
  ThreadLimit transfers_;
  WorkerPool quick_, slow_;
  HttpServer server_;
};

Edge::Edge(Engine& engine, UniqueFd listener, EdgeOptions options) {
  if (!valid_name(options.name))
    throw usage_error(quote(options.name) + " is no valid name of an edge")
        .hint("use lowercase letters, digits, '.', '_' and '-', at most 63");
  service_ = std::make_unique<Service>(engine, std::move(listener), std::move(options));
}

Edge::~Edge() = default;

bool Edge::drain(milliseconds time) { return service_->drain(time); }

}  // namespace dsec::remote
