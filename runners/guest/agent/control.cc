#include "runners/guest/agent/agent.h"
#include "runners/guest/sys.h"

namespace dsec::guest {
namespace {

struct SystemInfo {
  long uptime;
  unsigned long loads[3], total_ram, free_ram, shared_ram, buffer_ram, total_swap, free_swap;
  unsigned short processes, padding;
  unsigned long total_high, free_high;
  unsigned unit;
  char rest[8];
};

struct SystemName {
  char system[65], node[65], release[65], version[65], machine[65], domain[65];
};

void append_uptime(wire::Writer<Buffer>& writer) { writer.u64(monotonic_us()); }

void welcome() {
  SystemInfo info = {};
  SystemName name = {};
  sys(__NR_sysinfo, &info);
  sys(__NR_uname, &name);
  Buffer text = {};
  wire::Writer<Buffer> writer(text);
  writer.u64(channel::kMagic).u32(channel::kVersion);
  append_uptime(writer);
  writer.u64(uint64_t{info.total_ram} * info.unit).str(name.release, strlen(name.release));
  writer.u32(static_cast<uint32_t>(agent.state));
  send_control(channel::Type::Welcome, 0, text.data, text.size);
  text.clear();
}

bool hello(wire::Reader& reader) {
  const uint64_t magic = reader.u64();
  reader.u32();  // dsec decides by what we answer whether it can go on
  const uint64_t wall = reader.u64();
  const Text random = reader.str();
  if (!reader.ok() || magic != channel::kMagic) return false;
  // Who says it knows nothing of what was before.
  abandon_streams();
  forget_flows();
  // Whose sandbox is still to come has nothing that a Thaw would let go on.
  if (agent.state == channel::AgentState::Quiesced && !agent.configured) agent.state = channel::AgentState::Waiting;
  set_clock(wall);
  stir_random(random);
  welcome();
  return true;
}

void answer(bool done, const Failure& failure) {
  if (!done) return send_failed(failure);
  send_control(channel::Type::Done, 0, nullptr, 0);
}

bool configure_once(const char* data, size_t size) {
  Failure failure = {};
  if (agent.configured) {
    failure.set("configure a machine twice", "", 0);
    return send_failed(failure), true;
  }
  agent.configured = true;
  if (!configure(data, size, failure)) return send_failed(failure), true;
  agent.state = channel::AgentState::Running;
  begin_asking();
  Buffer text = {};
  wire::Writer<Buffer> writer(text);
  append_uptime(writer);
  send_control(channel::Type::Ready, 0, text.data, text.size);
  text.clear();
  return true;
}

}  // namespace

bool handle_control(channel::Type type, const char* data, size_t size) {
  wire::Reader reader(data, size);
  Failure failure = {};
  switch (type) {
    case channel::Type::Hello:
      return hello(reader);
    case channel::Type::Configure:
      return configure_once(data, size);
    case channel::Type::Statistics:
      send_figures();
      return true;
    case channel::Type::Quiesce:
      answer(quiesce(failure), failure);
      return true;
    case channel::Type::Thaw: {
      const uint64_t wall = reader.u64();
      if (!reader.ok()) return false;
      answer(thaw(wall, failure), failure);
      return true;
    }
    case channel::Type::Clock: {
      const uint64_t wall = reader.u64();
      if (!reader.ok()) return false;
      set_clock(wall);
      go_on();
      answer(true, failure);
      return true;
    }
    case channel::Type::Renew: {
      const Text machine = reader.str(), host = reader.str(), random = reader.str();
      Strings environment = {};
      if (!environment.read(reader)) return false;
      answer(renew(machine, host, random, environment, failure), failure);
      environment.clear();
      return true;
    }
    case channel::Type::Rewrite: {
      const Text path = reader.str(), content = reader.str();
      if (!reader.ok()) return false;
      const long done = rewrite_file(path, content);
      if (done < 0) failure.set("rewrite a file of", "the configuration", done);
      answer(done >= 0, failure);
      return true;
    }
    case channel::Type::Rest:
      answer(rest(failure), failure);
      return true;
    case channel::Type::PowerOff:
      end_machine();
    default:
      return false;  // one that only we say
  }
}

}  // namespace dsec::guest
