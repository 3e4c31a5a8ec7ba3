#include "runners/egress/gateway/relay.h"

#include <algorithm>

namespace dsec::egress {
namespace {

// So many requests have one record, each up to this length.
constexpr std::size_t kMostRequests = 32, kLongestRequest = 200;

bool same_header(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return (x >= 'A' && x <= 'Z' ? x + 32 : x) == (y >= 'A' && y <= 'Z' ? y + 32 : y);
         });
}

}  // namespace

// HTTP requests on a connection, each looked at.

// Requests from raw_ to to_server_, each looked at.
void Relay::take_requests() {
  while (!raw_.empty() && stage_ == Stage::Pass && to_server_.size() < kBuffer) {
    if (!body_.done()) {
      const std::size_t used = body_.consume(raw_);
      if (body_.bad()) return refuse("its request was not passed on: the length of its body cannot be read");
      to_server_.append(raw_, 0, used);
      raw_.erase(0, used);
      continue;
    }
    // Whether what follows is another request the server says first.
    if (!agreement_.empty()) return;
    if (last_request_) {
      raw_.clear();
      return;
    }
    const HttpHead head = parse_http_head(raw_);
    if (head.state == HttpHead::State::NeedMore) {
      if (client_ended_) raw_.clear();
      return;
    }
    if (head.state != HttpHead::State::Done)
      return refuse("a later request was not passed on: " + (head.fault.empty() ? "it is no HTTP" : head.fault));
    take_head(head, std::string_view(raw_).substr(0, head.size));
    if (stage_ != Stage::Pass) return;
    raw_.erase(0, head.size);
  }
}

// The first bytes of the answer to a request that would change the protocol.
void Relay::hear_agreement(std::string_view bytes) {
  answer_ += bytes.substr(0, agreement_.size() - answer_.size());
  if (answer_.size() < agreement_.size()) return;
  opaque_ = answer_ == agreement_ || (agreement_.ends_with('2') && answer_ == "HTTP/1.0 2");
  agreement_.clear();
}

void Relay::take_head(const HttpHead& head, std::string_view bytes) {
  if (requests_ > 0) {
    // The connection leads to one host; another name on it would only reach that one's server.
    const std::string& first = !target_.host.empty() ? target_.host : target_.address.value_or(address_).str();
    bool same = head.host == first;
    if (!same && head.host_is_address)
      if (const auto at = sandbox_.name_at(*IpAddress::parse(head.host))) same = *at == first;
    if (!same && !consult_host(head)) return;
  }
  if (!inject_name_.empty() && (head.method == "TRACE" || head.method == "TRACK"))
    return refuse("a secret goes along for this host: it would come back in the answer to " + head.method);
  note_request(head);
  body_ = HttpBody(head);
  const bool connect = head.method == "CONNECT";
  if (head.upgrade || connect) {
    // Which answer is its own would else be hard to say.
    if (requests_ > 1) return refuse("a later request was not passed on: it would change the protocol");
    if (!inject_name_.empty()) return refuse("a secret goes along for this host: it cannot be upgraded");
    agreement_ = connect ? "HTTP/1.1 2" : "HTTP/1.1 101";
  }
  // Of two hosts that a request names a server could take the other one.
  if (inject_name_.empty() && way_ != Way::Forward && !head.absolute) {
    to_server_ += bytes;
    return;
  }
  // One request at a time through the proxy: the next may be for another host.
  const bool forward = way_ == Way::Forward;
  last_request_ = forward;
  to_server_ += head.method + " ";
  if (head.absolute && origin_form(head)[0] != '/') to_server_ += "/";
  to_server_ += head.absolute ? origin_form(head) : std::string_view(head.target);
  to_server_ += bytes.find(" HTTP/1.0\r\n") < bytes.find('\n') ? " HTTP/1.0\r\n" : " HTTP/1.1\r\n";
  if (head.absolute) {
    to_server_ += "Host: " + (head.host.find(':') != std::string::npos ? "[" + head.host + "]" : head.host);
    if (head.port && head.port != 80) to_server_ += ":" + std::to_string(head.port);
    to_server_ += "\r\n";
  }
  for (const auto& [name, value] : head.headers) {
    if (head.absolute && same_header(name, "Host")) continue;
    if (same_header(name, "Proxy-Connection") || same_header(name, "Proxy-Authorization")) continue;
    if (forward && agreement_.empty() && (same_header(name, "Connection") || same_header(name, "Keep-Alive"))) continue;
    if (!inject_name_.empty() && same_header(name, inject_name_)) continue;
    to_server_ += name + ": " + value + "\r\n";
  }
  to_server_ += header_;
  if (forward && agreement_.empty()) to_server_ += "Connection: close\r\n";
  to_server_ += "\r\n";
}

// What a query carries is nobody's business but the server's.
void Relay::note_request(const HttpHead& head) {
  if (http_.size() == kMostRequests) log_requests();
  ++requests_;
  std::string text(head.absolute ? origin_form(head) : std::string_view(head.target));
  text = head.method + " " + text.substr(0, std::min(text.find_first_of("?#"), kLongestRequest));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  http_.push_back(std::move(text));
}

// Of a connection that goes on.
void Relay::log_requests() {
  NetworkRecord so_far = record("allow", rule_);
  so_far.more = true;
  sandbox_.log(so_far);
  http_.clear();
  logged_requests_ = requests_;
  logged_sent_ = sent_;
  logged_received_ = received_;
  began_ = Clock::now();
}

}  // namespace dsec::egress
