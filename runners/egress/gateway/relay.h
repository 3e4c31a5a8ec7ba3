#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/model/network_policy.h"
#include "runners/egress/gateway/client_tls.h"
#include "runners/egress/gateway/http_request.h"
#include "runners/egress/gateway/loop.h"
#include "runners/egress/gateway/sandbox.h"
#include "runners/egress/gateway/server_connection.h"

namespace dsec::egress {

/// One TCP connection of a sandbox: finds out whom it is for, asks the policy, connects to the gateway's own resolution
/// of that, and passes bytes on, each direction held up by the other end alone.
///
/// Whom a connection is for is known in two steps. The address is either one that stands for a name, or a literal. Then
/// its first bytes may name a host themselves: TLS by SNI, HTTP by Host, a proxy request by its target. A name that the
/// bytes say must be allowed, too; a literal that no rule allows is dialled by the name that the bytes say, if any.
class Relay {
 public:
  Relay(Sandbox& sandbox, UniqueFd client, IpAddress address, std::uint16_t port);
  ~Relay();
  void start();
  /// Whether the policy still allows it; else it is cut.
  void check();
  void cut(const std::string& reason);

 private:
  static constexpr std::size_t kBuffer = 128 << 10;  ///< of each direction

  enum class Stage {
    Sniff,    ///< reads until the first bytes have said what they can
    Connect,  ///< to the server; what the client said is kept
    Pass,     ///< passes bytes on
    Dns,      ///< answers queries
    Answer,   ///< writes a last answer to the client
    Over,
  };
  enum class Kind { Unknown, Raw, Tls, Http };
  enum class Way { Direct, Tunnel, Forward };  ///< not through the proxy; by CONNECT; by an absolute target

  // Whom it is for.
  void begin_proxy();
  bool consult_address();
  void sniff();
  void sniff_tls();
  void sniff_http();
  void sniff_proxy();
  void sniff_rest();
  bool consult_name(const std::string& name, bool is_address, const char* what, std::uint16_t port = 0);
  bool consult_host(const HttpHead& head);
  bool must_sniff() const;
  bool by_address_alone() const;
  bool hides(const std::string& why);
  NetworkVerdict verdict_now();
  static std::string header_line(const HeaderSecret& secret, const std::string& value);
  void intercept(const std::string& server_name);

  // The connection to the server.
  void dial();
  void dial_addresses(std::vector<IpAddress> addresses);
  void dial_next();
  void watch_connecting();
  void on_connecting();
  void connected();

  // Bytes.
  void on_client(std::uint32_t events);
  void on_server(std::uint32_t events);
  bool read_client();
  bool take_plain();
  ssize_t put_client(std::string_view bytes);
  void end_client();
  bool read_server();
  void pump();
  void flush_client();
  void flush_server();
  void take_requests();
  void take_head(const HttpHead& head, std::string_view bytes);
  void note_request(const HttpHead& head);
  void log_requests();
  void hear_agreement(std::string_view bytes);
  void answer_dns();
  void update();

  // Ends.
  void give_up(bool denied, const std::string& reason);
  void refuse(const std::string& reason);
  void fail(const std::string& reason);
  void answer_and_end(std::string bytes, const char* verdict, const std::string& reason);
  void reset(const char* verdict, const std::string& reason);
  void finish(const char* verdict, const std::string& reason);
  void expect_record(bool expected);
  NetworkRecord record(const char* verdict, const std::string& reason) const;
  std::string http_answer(const char* status, const std::string& text) const;

  Sandbox& sandbox_;
  Loop& loop_;
  Clock::time_point began_ = Clock::now();
  UniqueFd client_;
  std::unique_ptr<ClientTls> client_tls_;  ///< its TLS is intercepted
  std::string tls_host_;                   ///< whom the server then has to prove to be
  std::optional<ServerConnection> server_;
  std::unique_ptr<Watch> client_watch_, server_watch_;
  std::unique_ptr<Timer> timer_;

  const IpAddress address_;                  ///< what the sandbox connected to
  NetworkTarget target_;                     ///< what it is for, as far as it is known
  std::optional<NetworkTarget> also_named_;  ///< by its first bytes, and allowed like the target
  std::string dialled_;                      ///< host that is (to be) connected to; empty: target_.address
  std::string rule_;                         ///< why it is allowed
  std::string given_up_;  ///< why it cannot be connected, known before the first bytes said how to tell
  bool given_up_is_denial_ = false;
  std::string trouble_;                   ///< why the last address could not be connected to
  const HeaderSecret* inject_ = nullptr;  ///< of the policy when it began
  std::string header_;                    ///< "Authorization: Bearer …\r\n"
  std::string inject_name_;
  std::uint16_t server_port_ = 0;
  std::vector<IpAddress> addresses_;
  std::optional<IpAddress> server_address_;

  Stage stage_ = Stage::Sniff;
  Kind kind_ = Kind::Unknown;
  Way way_ = Way::Direct;
  bool proxy_ = false;  ///< at the proxy's port, and not known whom it is for
  bool allowed_by_address_ = false, decided_ = false, dialling_ = false;
  bool client_ended_ = false, server_ended_ = false, told_server_ = false, told_client_ = false;
  bool opaque_ = false, last_request_ = false, broken_ = false, expects_record_ = false;
  std::string agreement_;  ///< how the answer begins with which the server changes the protocol; empty: nobody asked
  std::string answer_;     ///< how it begins, so far
  HttpBody body_;
  std::optional<FirstLine> first_line_;  ///< of what is passed on unread although names count
  std::string hidden_;                   ///< why a strict policy would refuse it; empty: it would not
  std::string raw_;                      ///< of the client, not looked at
  std::vector<std::string> http_;        ///< requests that no record has yet
  std::string to_server_, to_client_;
  std::uint64_t sent_ = 0, received_ = 0, requests_ = 0;
  std::uint64_t logged_sent_ = 0, logged_received_ = 0, logged_requests_ = 0;  ///< in records of it so far
  unsigned queries_ = 0;                                                       ///< being resolved, of Dns
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dsec::egress
