#include "core/model/network_policy.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"

namespace dsec {
namespace {

constexpr std::size_t kMostRules = 4096;

bool letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return result;
}

Error bad_rule(std::string_view text, const std::string& why) {
  return usage_error(quote(text) + " is no network rule: " + why)
      .hint("write a preset, HOST, *.HOST, ADDRESS or ADDRESS/BITS, each with :PORT or :FIRST-LAST when wanted");
}

std::uint16_t parse_port(std::string_view rule, std::string_view text) {
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || port == 0 || port > 65535)
    throw bad_rule(rule, quote(text) + " is no port");
  return static_cast<std::uint16_t>(port);
}

void parse_ports(std::string_view rule, std::string_view text, NetworkRule& result) {
  if (text == "*") {
    result.first_port = 1;
    result.last_port = 65535;
    return;
  }
  const std::size_t dash = text.find('-');
  result.first_port = parse_port(rule, text.substr(0, dash));
  result.last_port = dash == std::string_view::npos ? result.first_port : parse_port(rule, text.substr(dash + 1));
  if (result.last_port < result.first_port) throw bad_rule(rule, "its ports go backwards");
}

// "[…]" and "[…]/BITS" as an address without the brackets, and what follows; nothing for other text.
std::optional<std::pair<std::string, std::string_view>> split_brackets(std::string_view rule, std::string_view text) {
  if (!text.starts_with('[')) return std::nullopt;
  const std::size_t close = text.find(']');
  if (close == std::string_view::npos) throw bad_rule(rule, "'[' without ']'");
  std::string address(text.substr(1, close - 1));
  std::string_view rest = text.substr(close + 1);
  if (rest.starts_with('/')) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    address += rest.substr(0, end);
    rest.remove_prefix(end);
  }
  return std::pair{std::move(address), rest};
}

// Network rules as they are written most often by mistake.
void refuse_url(std::string_view rule) {
  const std::size_t scheme = rule.find("://");
  if (scheme == std::string_view::npos) return;
  std::string_view host = rule.substr(scheme + 3);
  host = host.substr(0, host.find('/'));
  throw usage_error(quote(rule) + " is no network rule: it is a URL, and rules know hosts and ports only")
      .hint("write " + std::string(host));
}

template <typename T>
T member(const Json& json, const char* key, const char* kind, T fallback) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return fallback;
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception&) {
    throw usage_error("network: " + std::string(key) + " must be " + kind);
  }
}

void refuse_unknown(const Json& json, std::vector<std::string> known, const char* where) {
  if (!json.is_object()) throw usage_error(std::string(where) + " must be a mapping");
  for (const auto& [key, value] : json.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    Error error = usage_error(std::string(where) + " has no " + quote(key));
    for (const std::string& near : nearest_names(key, known, 1)) error.hint("did you mean " + near);
    throw error;
  }
}

std::vector<NetworkRule> rules_from(const Json& json, const char* key) {
  std::vector<NetworkRule> rules;
  for (const std::string& text : member<std::vector<std::string>>(json, key, "a list of rules", {}))
    rules.push_back(NetworkRule::parse(text));
  if (rules.size() > kMostRules) throw usage_error("network: more than " + std::to_string(kMostRules) + " rules");
  return rules;
}

Json texts_of(const std::vector<NetworkRule>& rules) {
  Json texts = Json::array();
  for (const NetworkRule& rule : rules) texts.push_back(rule.str());
  return texts;
}

bool header_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return letter_or_digit(static_cast<char>(c | 0x20)) || c == '-' || c == '_';
  });
}

HeaderSecret secret_from(const Json& json) {
  refuse_unknown(json, {"host", "header", "prefix", "secret", "port"}, "network: inject");
  HeaderSecret result;
  const std::string host = member<std::string>(json, "host", "a host name", "");
  result.host = normal_host_name(host);
  if (result.host.empty()) throw usage_error("network: inject: " + quote(host) + " is no host name");
  result.header = member<std::string>(json, "header", "a header's name", "Authorization");
  if (!header_name(result.header)) throw usage_error("network: inject: " + quote(result.header) + " is no header");
  for (const char* taken : {"host", "content-length", "transfer-encoding", "connection", "upgrade", "expect"})
    if (lower(result.header) == taken)
      throw usage_error("network: inject: the header " + result.header + " frames requests");
  result.prefix = member<std::string>(json, "prefix", "text", "");
  if (std::any_of(result.prefix.begin(), result.prefix.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 32; }))
    throw usage_error("network: inject: the prefix contains control characters");
  result.secret = member<std::string>(json, "secret", "env:NAME or file:/PATH", "");
  if (!(result.secret.starts_with("env:") && result.secret.size() > 4) && !result.secret.starts_with("file:/"))
    throw usage_error("network: inject: " + quote(result.secret) + " tells no place of a secret")
        .hint("write secret: env:NAME or secret: file:/PATH; the value itself must stand in no file of the project");
  const auto port = member<std::uint32_t>(json, "port", "a port", 443);
  if (port == 0 || port > 65535) throw usage_error("network: inject: no such port");
  result.port = static_cast<std::uint16_t>(port);
  return result;
}

// Over `policy`, which a phase has from outside it.
void read_policy(const Json& json, NetworkPolicy& policy) {
  policy.allow = rules_from(json, "allow");
  policy.deny = rules_from(json, "deny");
  policy.strict = member<bool>(json, "strict", "true or false", policy.strict);
  if (const auto inject = json.find("inject"); inject != json.end() && !inject->is_null()) {
    policy.inject.clear();
    if (!inject->is_array()) throw usage_error("network: inject must be a list");
    for (const Json& one : *inject) policy.inject.push_back(secret_from(one));
  }
  if (const auto limits = json.find("limits"); limits != json.end() && !limits->is_null()) {
    refuse_unknown(*limits, {"connections", "bytes"}, "network: limits");
    policy.connections = member<std::uint32_t>(*limits, "connections", "a number", policy.connections);
    if (policy.connections == 0 || policy.connections > 65536)
      throw usage_error("network: limits: connections must be from 1 to 65536");
    if (const auto bytes = limits->find("bytes"); bytes != limits->end() && !bytes->is_null())
      policy.bytes = bytes->is_string() ? parse_size(bytes->get<std::string>())
                                        : member<std::uint64_t>(*limits, "bytes", "a size", 0);
  }
}

const std::vector<std::string> kPolicyKeys = {"allow", "deny", "strict", "inject", "limits"};

bool matches(const NetworkRule& rule, const NetworkTarget& target) {
  if (rule.transport != target.transport || !rule.covers_port(target.port)) return false;
  if (rule.kind == NetworkRule::Kind::Address) return target.address && rule.range.contains(*target.address);
  return !target.host.empty() && rule.covers_name(target.host);
}

// "deny example.com" without a port means the host, not two of its ports.
bool denies(const NetworkRule& rule, const NetworkTarget& target) {
  if (rule.first_port != 0) return matches(rule, target);
  if (rule.kind == NetworkRule::Kind::Address) return target.address && rule.range.contains(*target.address);
  return !target.host.empty() && rule.covers_name(target.host);
}

}  // namespace

std::string_view to_string(Transport transport) { return transport == Transport::Tcp ? "tcp" : "udp"; }

std::string normal_host_name(std::string_view text) {
  std::string name = lower(text);
  if (name.ends_with('.')) name.pop_back();
  if (name.empty() || name.size() > 253) return "";
  std::size_t label = 0;
  bool digits = true;
  for (std::size_t i = 0; i <= name.size(); ++i) {
    if (i == name.size() || name[i] == '.') {
      if (label == 0 || label > 63 || name[i - 1] == '-') return "";
      if (i == name.size() && digits) return "";  // what ends in a number would be an address to many programs
      label = 0;
      digits = true;
      continue;
    }
    if (!letter_or_digit(name[i]) && name[i] != '_' && (name[i] != '-' || label == 0)) return "";
    digits = digits && name[i] >= '0' && name[i] <= '9';
    ++label;
  }
  return name;
}

NetworkRule NetworkRule::parse(std::string_view text) {
  NetworkRule rule;
  refuse_url(text);
  std::string_view rest = text;
  if (rest.starts_with("tcp/") || rest.starts_with("udp/")) {
    if (rest.starts_with("udp/")) rule.transport = Transport::Udp;
    rest.remove_prefix(4);
  }
  if (rest.empty()) throw bad_rule(text, "it is empty");
  std::optional<AddressRange> range;
  if (const auto bracketed = split_brackets(text, rest)) {
    range = AddressRange::parse(bracketed->first);
    if (!range || range->base.is_v4()) throw bad_rule(text, quote(bracketed->first) + " is no IPv6 address or range");
    rest = bracketed->second;
    if (!rest.empty() && rest[0] != ':') throw bad_rule(text, quote(rest) + " follows the address");
    if (!rest.empty()) parse_ports(text, rest.substr(1), rule);
  } else if ((range = AddressRange::parse(rest))) {
    rest = {};
  } else {
    const std::size_t colon = rest.rfind(':');
    const std::string_view target = rest.substr(0, colon);
    if (target.find(':') != std::string_view::npos)
      throw bad_rule(text, "it is no address").hint("an IPv6 address with a port is written [ADDRESS]:PORT");
    range = AddressRange::parse(target);
    if (colon != std::string_view::npos) parse_ports(text, rest.substr(colon + 1), rule);
    rest = target;
  }
  if (range) {
    rule.kind = Kind::Address;
    rule.range = *range;
    return rule;
  }
  if (rest == "*") {
    rule.kind = Kind::AnyName;
    return rule;
  }
  if (rest.find('/') != std::string_view::npos)
    throw bad_rule(text, "it is no range of addresses, or bits beyond its prefix are set");
  const bool below = rest.starts_with("*.");
  if (below) rest.remove_prefix(2);
  if (rest.find('*') != std::string_view::npos) throw bad_rule(text, "'*' may only stand for whole names in front");
  rule.name = normal_host_name(rest);
  if (rule.name.empty()) {
    Error error = bad_rule(text, quote(rest) + " is no host name");
    if (std::any_of(rest.begin(), rest.end(), [](char c) { return (c & 0x80) != 0; }))
      error.hint("write international names in their xn-- form");
    throw error;
  }
  // A word is a preset, unless something says that it is a host: a port, the final dot, or udp/ and tcp/.
  const bool word = rule.name.find('.') == std::string::npos && !rest.ends_with('.') && rule.first_port == 0 && !below;
  rule.kind = below ? Kind::Below : word && rest.size() == text.size() ? Kind::Preset : Kind::Name;
  return rule;
}

HeaderSecret HeaderSecret::parse(std::string_view text) {
  const auto bad = [](const std::string& why) {
    return usage_error("--inject: " + why)
        .hint("write HOST=env:NAME, or HOST='HEADER: PREFIX env:NAME', with file:/PATH for a secret in a file");
  };
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) throw bad("there is no '=' after the host");
  std::string_view host = text.substr(0, equals), value = text.substr(equals + 1);
  const std::size_t place = std::max(value.rfind("env:") + 1, value.rfind("file:/") + 1);
  if (place == 0) throw bad("what follows '=' tells no place of a secret, and the secret itself must not stand here");
  Json json = {{"secret", value.substr(place - 1)}};
  if (std::string_view before = value.substr(0, place - 1); !before.empty()) {
    const std::size_t colon = before.find(": ");
    if (colon == std::string_view::npos) throw bad("the header has no ': ' after its name");
    json["header"] = before.substr(0, colon);
    json["prefix"] = before.substr(colon + 2);
  }
  if (const std::size_t colon = host.find(':'); colon != std::string_view::npos) {
    std::uint16_t port = 0;
    const std::string_view digits = host.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (error != std::errc() || end != digits.data() + digits.size() || port == 0) throw bad("the port is no port");
    json["port"] = port;
    host = host.substr(0, colon);
  }
  json["host"] = host;
  return secret_from(json);
}

std::string NetworkRule::str() const {
  std::string text = transport == Transport::Udp ? "udp/" : "";
  const bool six = kind == Kind::Address && !range.base.is_v4();
  switch (kind) {
    case Kind::Preset:
      return name;
    case Kind::Name:
      text += name;
      if (name.find('.') == std::string::npos && first_port == 0) text += ".";
      break;
    case Kind::Below:
      text += "*." + name;
      break;
    case Kind::AnyName:
      text += "*";
      break;
    case Kind::Address:
      text += six && first_port ? "[" + range.str() + "]" : range.str();
      break;
  }
  if (first_port == 0) return text;
  if (first_port == 1 && last_port == 65535) return text + ":*";
  text += ":" + std::to_string(first_port);
  return last_port == first_port ? text : text + "-" + std::to_string(last_port);
}

bool NetworkRule::covers_port(std::uint16_t port) const noexcept {
  if (first_port != 0) return port >= first_port && port <= last_port;
  return kind == Kind::Address || port == 80 || port == 443;
}

bool NetworkRule::covers_name(std::string_view host) const noexcept {
  switch (kind) {
    case Kind::Name:
      return host == name;
    case Kind::Below:
      return host.size() > name.size() + 1 && host.ends_with(name) && host[host.size() - name.size() - 1] == '.';
    case Kind::AnyName:
      return true;
    case Kind::Preset:
    case Kind::Address:
      break;
  }
  return false;
}

const NetworkPolicy& NetworkPlan::current() const {
  const auto found = phases.find(phase);
  return found == phases.end() ? base : found->second;
}

void check_network_phase(const std::string& name) {
  const std::vector<std::string> known(std::begin(kNetworkPhases), std::end(kNetworkPhases));
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  Error error = usage_error("there is no phase " + quote(name));
  for (const std::string& near : nearest_names(name, known, 1)) error.hint("did you mean " + near);
  throw std::move(error).hint("phases are setup, agent and verify");
}

NetworkPolicy network_policy_from_json(const Json& json) {
  refuse_unknown(json, kPolicyKeys, "network");
  NetworkPolicy policy;
  read_policy(json, policy);
  return policy;
}

NetworkPlan network_plan_from_json(const Json& json) {
  std::vector<std::string> keys = kPolicyKeys;
  keys.insert(keys.end(), {"phases", "phase", "intercept_tls"});
  refuse_unknown(json, keys, "network");
  NetworkPlan plan;
  read_policy(json, plan.base);
  if (const auto phases = json.find("phases"); phases != json.end() && !phases->is_null()) {
    if (!phases->is_object()) throw usage_error("network: phases must be a mapping of phases to policies");
    for (const auto& [name, policy] : phases->items()) {
      check_network_phase(name);
      NetworkPolicy& own = plan.phases[name] = plan.base;
      own.allow.clear();
      own.deny.clear();
      if (policy == "none") {
        own.inject.clear();
        continue;
      }
      if (!policy.is_object())
        throw usage_error("network: phases: " + name + " must be none or a policy")
            .hint("the network of the host cannot be given or taken away while a sandbox runs");
      refuse_unknown(policy, kPolicyKeys, ("network: phases: " + name).c_str());
      read_policy(policy, own);
    }
  }
  plan.phase = member<std::string>(json, "phase", "a phase", "");
  if (!plan.phase.empty()) check_network_phase(plan.phase);
  plan.intercept_tls = member<bool>(json, "intercept_tls", "true or false", false);
  return plan;
}

Json to_json(const NetworkPolicy& policy) {
  Json json = {{"allow", texts_of(policy.allow)}, {"deny", texts_of(policy.deny)}, {"strict", policy.strict}};
  json["inject"] = Json::array();
  for (const HeaderSecret& secret : policy.inject)
    json["inject"].push_back({{"host", secret.host},
                              {"header", secret.header},
                              {"prefix", secret.prefix},
                              {"secret", secret.secret},
                              {"port", secret.port}});
  json["limits"] = {{"connections", policy.connections}};
  if (policy.bytes) json["limits"]["bytes"] = *policy.bytes;
  return json;
}

Json to_json(const NetworkPlan& plan) {
  Json json = to_json(plan.base);
  json["phases"] = Json::object();
  for (const auto& [name, policy] : plan.phases) json["phases"][name] = to_json(policy);
  if (!plan.phase.empty()) json["phase"] = plan.phase;
  if (plan.intercept_tls) json["intercept_tls"] = true;
  return json;
}

void resolve_presets(NetworkPlan& plan, const NetworkPresets& presets) {
  const auto expand = [&](std::vector<NetworkRule>& rules) {
    std::vector<NetworkRule> expanded;
    for (const NetworkRule& rule : rules) {
      if (rule.kind != NetworkRule::Kind::Preset) {
        expanded.push_back(rule);
        continue;
      }
      const auto found = presets.find(rule.name);
      if (found == presets.end()) {
        std::vector<std::string> names;
        for (const auto& [name, texts] : presets) names.push_back(name);
        Error error = usage_error("there is no network preset " + quote(rule.name));
        for (const std::string& near : nearest_names(rule.name, names, 1)) error.hint("did you mean " + near);
        throw std::move(error)
            .hint("define it in the configuration: presets: {" + rule.name + ": [HOST, ...]}")
            .hint("a host of one word is written with a dot at its end: " + rule.name + ".");
      }
      for (const std::string& text : found->second)
        attempt("network preset " + quote(rule.name), [&] {
          const NetworkRule part = NetworkRule::parse(text);
          if (part.kind == NetworkRule::Kind::Preset) throw usage_error(quote(text) + " is a preset itself");
          expanded.push_back(part);
        });
    }
    rules = std::move(expanded);
  };
  const auto expand_policy = [&](NetworkPolicy& policy) {
    expand(policy.allow);
    expand(policy.deny);
  };
  expand_policy(plan.base);
  for (auto& [name, policy] : plan.phases) expand_policy(policy);
}

NetworkVerdict evaluate(const NetworkPolicy& policy, const NetworkTarget& target) {
  for (const NetworkRule& rule : policy.deny)
    if (denies(rule, target)) return {false, "deny " + rule.str()};
  for (const NetworkRule& rule : policy.allow)
    if (matches(rule, target)) return {true, "allow " + rule.str()};
  return {false, "no rule allows it"};
}

NetworkVerdict evaluate_name(const NetworkPolicy& policy, std::string_view host) {
  for (const NetworkRule& rule : policy.deny) {
    const bool whole = rule.first_port == 0 || (rule.first_port == 1 && rule.last_port == 65535);
    if (whole && rule.covers_name(host)) return {false, "deny " + rule.str()};
  }
  for (const NetworkRule& rule : policy.allow)
    if (rule.covers_name(host)) return {true, "allow " + rule.str()};
  if (const HeaderSecret* secret = injection_for(policy, host)) return {true, "inject " + secret->host};
  return {false, "no rule allows it"};
}

NetworkVerdict evaluate_dial(const NetworkPolicy& policy, const IpAddress& address, std::uint16_t port,
                             Transport transport, bool own) {
  const NetworkTarget target{"", address, port, transport};
  for (const NetworkRule& rule : policy.deny)
    if (denies(rule, target)) return {false, "deny " + rule.str()};
  const SpecialRange* special = special_range(address);
  if (!special && !own) return {true, ""};
  for (const NetworkRule& rule : policy.allow) {
    if (rule.kind != NetworkRule::Kind::Address || !matches(rule, target)) continue;
    if (own ? rule.range.prefix == 128 : rule.range.within(special->range)) return {true, "allow " + rule.str()};
  }
  return {false, address.str() + " is " + (own ? "an address of this host" : special->what) + " and not named"};
}

const HeaderSecret* injection_for(const NetworkPolicy& policy, std::string_view host) {
  for (const HeaderSecret& secret : policy.inject)
    if (secret.host == host) return &secret;
  return nullptr;
}

}  // namespace dsec
