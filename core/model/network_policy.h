#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/model/ip_address.h"

namespace dsec {

/// What man/dsec-network.7.md describes: which hosts a sandbox may talk to. Pure values: the egress gateway enforces
/// them.

enum class Transport { Tcp, Udp };
std::string_view to_string(Transport transport);

/// One entry of `allow` or `deny`: "pypi", "example.org", "*.example.com:8443", "udp/192.0.2.7:53",
/// "[2001:db8::]/32:*".
struct NetworkRule {
  enum class Kind {
    Preset,   ///< a word that resolve_presets() replaces
    Name,     ///< one host name
    Below,    ///< "*.example.com": every name below it, not itself
    AnyName,  ///< "*"
    Address,
  };
  Kind kind = Kind::Name;
  Transport transport = Transport::Tcp;
  std::string name;    ///< of Preset, Name and Below; lower case, no dot at the end
  AddressRange range;  ///< of Address
  /// Ports, both included; 0, 0: as the kind has it without (a name 80 and 443, an address all).
  std::uint16_t first_port = 0, last_port = 0;

  /// Throws Error (Usage) saying what is wrong, with a hint.
  static NetworkRule parse(std::string_view text);
  std::string str() const;
  bool covers_port(std::uint16_t port) const noexcept;
  bool covers_name(std::string_view host) const noexcept;
  bool operator==(const NetworkRule&) const = default;
};

/// A header that the gateway adds to the sandbox's plain HTTP requests for one host, which it sends on over TLS. Only
/// where the value comes from is kept, never the value.
struct HeaderSecret {
  std::string host, header;  ///< "api.example.com", "Authorization"
  std::string prefix;        ///< what stands before the secret: "Bearer "
  std::string secret;        ///< "env:NAME" or "file:/PATH", of the process that makes the sandbox
  std::uint16_t port = 443;  ///< of the server
  bool operator==(const HeaderSecret&) const = default;

  /// "HOST[:PORT]=[HEADER: [PREFIX]]env:NAME" (or file:/PATH), as in "api.example.com=Authorization: Bearer env:KEY".
  /// Throws Error (Usage), which does not repeat the text: somebody may have written the secret itself.
  static HeaderSecret parse(std::string_view text);
};

/// What holds at one moment. A deny rule wins over every allow rule; what no allow rule covers is denied.
struct NetworkPolicy {
  std::vector<NetworkRule> allow, deny;
  /// Through rules by name only TLS whose name is visible and the one that was looked up, and HTTP likewise.
  bool strict = false;
  std::vector<HeaderSecret> inject;
  std::uint32_t connections = 1024;    ///< at once, of one sandbox
  std::optional<std::uint64_t> bytes;  ///< both ways together, over the sandbox's life; absent: no limit
  bool operator==(const NetworkPolicy&) const = default;
};

/// The phases that switch policies.
inline constexpr const char* kNetworkPhases[] = {"setup", "agent", "verify"};

/// A sandbox's policies and which of them holds.
struct NetworkPlan {
  NetworkPolicy base;                           ///< outside phases, and in those that have none of their own
  std::map<std::string, NetworkPolicy> phases;  ///< by name of kNetworkPhases
  std::string phase;                            ///< empty: none
  /// The gateway ends the sandbox's TLS, with an authority that the sandbox is told to trust. For its whole life.
  bool intercept_tls = false;
  const NetworkPolicy& current() const;
  bool operator==(const NetworkPlan&) const = default;
};

/// Throws Error (Usage) with near names.
void check_network_phase(const std::string& name);

/// The form of dsec.yaml: {"allow": […], "deny": […], "strict": …, "inject": […], "limits": {"connections", "bytes"},
/// "phases": {NAME: "none" | {…}}, "phase": NAME, "intercept_tls": …}. A phase says all of allow and deny, and takes
/// over the rest.
NetworkPlan network_plan_from_json(const Json& json);
Json to_json(const NetworkPlan& plan);
NetworkPolicy network_policy_from_json(const Json& json);
Json to_json(const NetworkPolicy& policy);

/// Preset to what it stands for.
using NetworkPresets = std::map<std::string, std::vector<std::string>>;
/// Throws Error (Usage) with near names for a preset that there is not, or whose text is no rule.
void resolve_presets(NetworkPlan& plan, const NetworkPresets& presets);

/// Lower case without the dot at the end; empty when it is no host name. An address is none.
std::string normal_host_name(std::string_view text);

/// What a sandbox asks for.
struct NetworkTarget {
  std::string host;                  ///< normal; empty: known by address alone
  std::optional<IpAddress> address;  ///< of the server, where that is what the sandbox named or the gateway would dial
  std::uint16_t port = 0;
  Transport transport = Transport::Tcp;
};

struct NetworkVerdict {
  bool allowed = false;
  std::string reason;  ///< "allow example.org", "deny *.example.com", "no rule allows it"
};

/// By deny rules, then allow rules. Does not look at special ranges.
NetworkVerdict evaluate(const NetworkPolicy& policy, const NetworkTarget& target);
/// Whether names may be looked up: some port of it could be allowed.
NetworkVerdict evaluate_name(const NetworkPolicy& policy, std::string_view host);
/// Whether the gateway may connect to `address` for an allowed target: a deny rule may name the address; one in a
/// special range, or of this host (`own`), must be named by an allow rule that lies within that range (is that
/// address).
NetworkVerdict evaluate_dial(const NetworkPolicy& policy, const IpAddress& address, std::uint16_t port,
                             Transport transport, bool own);
/// The secret of a host, or null.
const HeaderSecret* injection_for(const NetworkPolicy& policy, std::string_view host);

}  // namespace dsec
