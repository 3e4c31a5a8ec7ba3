#include "core/model/network_policy.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/network_change.h"

namespace dsec {
namespace {

NetworkPolicy policy(const std::vector<std::string>& allow, const std::vector<std::string>& deny = {}) {
  return network_policy_from_json({{"allow", allow}, {"deny", deny}});
}

bool by_name(const NetworkPolicy& policy, const std::string& host, std::uint16_t port = 443,
             Transport transport = Transport::Tcp) {
  return evaluate(policy, {host, std::nullopt, port, transport}).allowed;
}

bool by_address(const NetworkPolicy& policy, const char* address, std::uint16_t port = 443,
                Transport transport = Transport::Tcp) {
  return evaluate(policy, {"", IpAddress::parse(address), port, transport}).allowed;
}

bool dial(const NetworkPolicy& policy, const char* address, bool own = false, std::uint16_t port = 443) {
  return evaluate_dial(policy, *IpAddress::parse(address), port, Transport::Tcp, own).allowed;
}

std::string refusal(const std::string& rule) {
  try {
    NetworkRule::parse(rule);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST_CASE("rules are written as they are read", "[model][network]") {
  for (const char* text :
       {"pypi", "py.example", "*.example.com", "*", "*:*", "example.com:8443", "example.com:1000-2000", "mirror.",
        "mirror:80", "udp/ntp.example.com:123", "10.0.0.0/8", "10.1.2.3:22", "udp/192.0.2.7:53", "2001:db8::/32",
        "[2001:db8::1]:443", "[2001:db8::/32]:*"})
    CHECK(NetworkRule::parse(text).str() == text);
  CHECK(NetworkRule::parse("Py.Example.").str() == "py.example");
  CHECK(NetworkRule::parse("tcp/mirror").kind == NetworkRule::Kind::Name);
}

TEST_CASE("what is no rule is refused with what would be one", "[model][network]") {
  CHECK(refusal("https://py.example/simple").find("it is a URL") != std::string::npos);
  CHECK(refusal("10.0.0.1/8").find("bits beyond its prefix") != std::string::npos);
  CHECK(refusal("example.com:0").find("is no port") != std::string::npos);
  CHECK(refusal("example.com:99-1").find("go backwards") != std::string::npos);
  CHECK(refusal("a.*.com").find("only stand for whole names in front") != std::string::npos);
  CHECK(refusal("fd00::1:443x").find("it is no address") != std::string::npos);
  CHECK(refusal("1.2.3").find("no host name") != std::string::npos);
  CHECK(refusal("").find("empty") != std::string::npos);
  CHECK(refusal("b\xc3\xbc"
                "cher.example")
            .find("no host name") != std::string::npos);
}

TEST_CASE("a host without a port means the two of the web", "[model][network]") {
  const NetworkPolicy web = policy({"py.example"});
  CHECK(by_name(web, "py.example", 443));
  CHECK(by_name(web, "py.example", 80));
  CHECK_FALSE(by_name(web, "py.example", 22));
  CHECK_FALSE(by_name(web, "py.example", 443, Transport::Udp));
  CHECK_FALSE(by_name(web, "www.py.example"));
  CHECK_FALSE(by_name(web, "evilpy.example"));
  CHECK_FALSE(by_address(web, "93.184.216.34"));
}

TEST_CASE("a star stands for everything below, not for the name itself", "[model][network]") {
  const NetworkPolicy below = policy({"*.example.com"});
  CHECK(by_name(below, "a.example.com"));
  CHECK(by_name(below, "a.b.example.com"));
  CHECK_FALSE(by_name(below, "example.com"));
  CHECK_FALSE(by_name(below, "badexample.com"));
}

TEST_CASE("deny wins, whatever is more precise", "[model][network]") {
  const NetworkPolicy mixed = policy({"*:*", "api.evil.example", "0.0.0.0/0"}, {"*.evil.example", "9.9.9.0/24"});
  CHECK(by_name(mixed, "good.example", 5000));
  CHECK_FALSE(by_name(mixed, "api.evil.example"));
  CHECK_FALSE(by_name(mixed, "api.evil.example", 25, Transport::Udp));
  CHECK(by_address(mixed, "8.8.8.8"));
  CHECK_FALSE(by_address(mixed, "9.9.9.9"));
  CHECK_FALSE(dial(mixed, "9.9.9.9"));
  CHECK(evaluate(mixed, {"x.evil.example", std::nullopt, 443, Transport::Tcp}).reason == "deny *.evil.example");
}

TEST_CASE("an address means all its ports of TCP", "[model][network]") {
  const NetworkPolicy lan = policy({"10.1.0.0/16", "udp/10.2.0.1:53", "[2001:4860::/32]:443"});
  CHECK(by_address(lan, "10.1.2.3", 5432));
  CHECK_FALSE(by_address(lan, "10.1.2.3", 53, Transport::Udp));
  CHECK_FALSE(by_address(lan, "10.2.0.1", 53));
  CHECK(by_address(lan, "10.2.0.1", 53, Transport::Udp));
  CHECK(by_address(lan, "::ffff:10.1.2.3", 5432));
  CHECK(by_address(lan, "2001:4860::1"));
  CHECK_FALSE(by_address(lan, "2001:4860::1", 80));
  CHECK_FALSE(by_address(policy({"0.0.0.0/0"}), "2001:4860::1"));
  CHECK_FALSE(by_address(policy({"::/0"}), "8.8.8.8"));
}

TEST_CASE("no rule for the whole internet leads to private networks, metadata or the host", "[model][network]") {
  const NetworkPolicy all = policy({"*:*", "0.0.0.0/0", "::/0"});
  CHECK(dial(all, "8.8.8.8"));
  CHECK(dial(all, "2606:4700::1"));
  for (const char* special :
       {"10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fd00:ec2::254", "fe80::1", "64:ff9b::a9fe:a9fe", "2002:a00:1::1", "ff02::1",
        "::ffff:169.254.169.254", "198.18.0.1", "192.0.2.1"})
    CHECK_FALSE(dial(all, special));
  for (const char* metadata : {"168.63.129.16", "::ffff:168.63.129.16"}) CHECK_FALSE(dial(all, metadata));
  CHECK_FALSE(dial(all, "8.8.8.8", true));
  CHECK(evaluate_dial(all, *IpAddress::parse("169.254.169.254"), 80, Transport::Tcp, false).reason.find("link-local") !=
        std::string::npos);
}

TEST_CASE("special addresses are reached when they are named", "[model][network]") {
  const NetworkPolicy named = policy({"10.0.0.0/8", "169.254.169.254:80", "203.0.114.5/32", "fd00::/8"});
  CHECK(dial(named, "10.9.9.9"));
  CHECK_FALSE(dial(named, "192.168.0.1"));
  CHECK(dial(named, "169.254.169.254", false, 80));
  CHECK_FALSE(dial(named, "169.254.169.254", false, 443));
  CHECK(dial(named, "fd00::5"));
  // The host itself takes its own address, not a range that it happens to be in.
  CHECK_FALSE(dial(named, "10.9.9.9", true));
  CHECK(dial(named, "203.0.114.5", true));
  CHECK(dial(policy({"168.63.129.16"}), "168.63.129.16"));
  CHECK_FALSE(dial(policy({"168.63.129.0/24"}), "168.63.129.16"));
  CHECK(dial(policy({"168.63.129.0/24"}), "168.63.129.17"));
}

TEST_CASE("names are looked up only when some port of them could be allowed", "[model][network]") {
  const NetworkPolicy some =
      policy({"*.example.com", "git.example.org:22"}, {"secret.example.com", "a.example.com:25"});
  CHECK(evaluate_name(some, "a.example.com").allowed);
  CHECK(evaluate_name(some, "git.example.org").allowed);
  CHECK_FALSE(evaluate_name(some, "secret.example.com").allowed);
  CHECK_FALSE(evaluate_name(some, "data.tunnel.example").allowed);
  CHECK_FALSE(evaluate_name(policy({"0.0.0.0/0"}), "example.com").allowed);
}

TEST_CASE("presets stand for the rules that the configuration gives them", "[model][network]") {
  NetworkPlan plan =
      network_plan_from_json({{"allow", {"pypi", "npm"}}, {"phases", {{"setup", {{"allow", {"pypi"}}}}}}});
  const NetworkPresets presets{{"pypi", {"mirror.example:8080"}}, {"npm", {"packages.example"}}};
  resolve_presets(plan, presets);
  CHECK(plan.base.allow ==
        std::vector{NetworkRule::parse("mirror.example:8080"), NetworkRule::parse("packages.example")});
  CHECK(plan.phases.at("setup").allow == std::vector{NetworkRule::parse("mirror.example:8080")});
  NetworkPlan wrong = network_plan_from_json({{"allow", {"pipy"}}});
  try {
    resolve_presets(wrong, presets);
    FAIL("an unknown preset was accepted");
  } catch (const Error& error) {
    CHECK(error.message() == "there is no network preset 'pipy'");
    CHECK(error.hints()[0] == "did you mean pypi");
  }
  // Left unresolved it allows nothing.
  CHECK_FALSE(by_name(policy({"pypi"}), "pypi"));
}

TEST_CASE("phases switch policies and keep what they do not say", "[model][network]") {
  NetworkPlan plan =
      network_plan_from_json({{"allow", {"py.example"}},
                              {"strict", true},
                              {"inject", {{{"host", "api.example.com"}, {"secret", "env:KEY"}}}},
                              {"phases", {{"setup", {{"allow", {"*"}}, {"strict", false}}}, {"verify", "none"}}}});
  CHECK(by_name(plan.current(), "py.example"));
  plan.phase = "agent";
  CHECK(by_name(plan.current(), "py.example"));
  plan.phase = "setup";
  CHECK(by_name(plan.current(), "anything.example"));
  CHECK_FALSE(plan.current().strict);
  CHECK(plan.current().inject.size() == 1);
  plan.phase = "verify";
  CHECK_FALSE(by_name(plan.current(), "py.example"));
  CHECK(plan.current().inject.empty());
  CHECK(plan.current().strict);
  CHECK(network_plan_from_json(to_json(plan)) == plan);
}

TEST_CASE("mistakes in a policy are told by name", "[model][network]") {
  const auto message = [](const Json& json) {
    try {
      network_plan_from_json(json);
    } catch (const Error& error) {
      std::string text = error.message();
      for (const auto& hint : error.hints()) text += "; " + hint;
      return text;
    }
    return std::string();
  };
  CHECK(message({{"alow", {"pypi"}}}) == "network has no 'alow'; did you mean allow");
  CHECK(message({{"phases", {{"verfy", "none"}}}}).find("did you mean verify") != std::string::npos);
  CHECK(message({{"phases", {{"agent", "host"}}}}).find("none or a policy") != std::string::npos);
  CHECK(message({{"allow", "pypi"}}).find("must be a list of rules") != std::string::npos);
  CHECK(message({{"inject", {{{"host", "a.example"}, {"secret", "sk-123"}}}}}).find("tells no place") !=
        std::string::npos);
  CHECK(message({{"inject", {{{"host", "a.example"}, {"secret", "env:A"}, {"header", "Host"}}}}})
            .find("frames requests") != std::string::npos);
  CHECK(message({{"limits", {{"connections", 0}}}}).find("connections must be") != std::string::npos);
}

TEST_CASE("host names are made equal before they are compared", "[model][network]") {
  CHECK(normal_host_name("Example.COM.") == "example.com");
  for (const char* wrong : {"", ".", "a..b", "-a.com", "a-.com", "a b.com", "1.2.3.4", "0x7f.1", "a.com/", "a\n.com"})
    CHECK(normal_host_name(wrong).empty());
  CHECK(normal_host_name(std::string(64, 'a') + ".com").empty());
}

}  // namespace
TEST_CASE("a change of the network is one request, whatever it comes to", "[model][network]") {
  NetworkPlan plan = network_plan_from_json(
      parse_json(R"({"allow": ["a.example"], "phases": {"agent": {"allow": ["b.example"]}}})", "test"));
  NetworkChange change;
  change.phase = "agent";
  change.rules = {policy({"c.example"}).allow, {}};
  const NetworkPlan after = changed(plan, change);
  CHECK(after.phase == "agent");
  CHECK(by_name(after.current(), "c.example"));
  CHECK_FALSE(by_name(after.current(), "b.example"));
  CHECK(by_name(after.base, "a.example"));
  CHECK(to_json(change) == parse_json(R"({"phase": "agent", "allow": ["c.example"], "deny": []})", "test"));
  // What is not given stays, and what is given as a whole comes first.
  CHECK(changed(after, {}) == after);
  NetworkChange whole;
  whole.plan = plan;
  whole.strict = true;
  CHECK(changed(after, whole).phase.empty());
  CHECK(changed(after, whole).base.strict);
  CHECK(network_plan_from_json(to_json(whole)["plan"]) == plan);
}

TEST_CASE("a secret of the command line reads like the header it makes", "[model][network]") {
  const HeaderSecret one = HeaderSecret::parse("API.example.com.:8443=X-Api-Key: Token env:KEY");
  CHECK(one == HeaderSecret{"api.example.com", "X-Api-Key", "Token ", "env:KEY", 8443});
  CHECK(HeaderSecret::parse("a.example=env:KEY") == HeaderSecret{"a.example", "Authorization", "", "env:KEY", 443});
  CHECK(HeaderSecret::parse("a.example=Authorization: Bearer file:/run/key").secret == "file:/run/key");
  for (const char* bad : {"", "=", "a.example", "a.example=", "a.example=sk-1", "a.example=Bearer env:K",
                          "a.example=env:", "a.example:0=env:K", "a.example:70000=env:K", "*.example=env:K",
                          "10.0.0.1=env:K", "a.example=Host: env:K", "a.example=X: file:relative"})
    CHECK_THROWS_AS(HeaderSecret::parse(bad), Error);
}

TEST_CASE("interception of TLS is part of a plan where it is asked for", "[model][network]") {
  const NetworkPlan plan = network_plan_from_json(parse_json(R"({"intercept_tls": true})", "test"));
  CHECK(plan.intercept_tls);
  CHECK(network_plan_from_json(to_json(plan)) == plan);
  CHECK_FALSE(to_json(NetworkPlan{}).contains("intercept_tls"));
  CHECK_THROWS_AS(network_plan_from_json(parse_json(R"({"phases": {"setup": {"intercept_tls": true}}})", "test")),
                  Error);
}

}  // namespace dsec
