#include "runners/vm/unix_http.h"

#include <curl/curl.h>

#include <exception>
#include <memory>
#include <mutex>

#include "core/base/error.h"

namespace dsec::runners {
namespace {

constexpr std::size_t kLongestAnswer = 1 << 20;
constexpr std::size_t kLongestHead = 64 << 10;

struct Received {
  std::string body;
  std::size_t head = 0;
};

std::size_t take_body(const char* data, std::size_t, std::size_t count, void* user) {
  auto& received = *static_cast<Received*>(user);
  if (received.body.size() + count > kLongestAnswer) return 0;
  try {
    received.body.append(data, count);
  } catch (const std::exception&) {
    return 0;
  }
  return count;
}

std::size_t take_head(const char*, std::size_t, std::size_t count, void* user) {
  auto& received = *static_cast<Received*>(user);
  received.head += count;
  return received.head > kLongestHead ? 0 : count;
}

}  // namespace

UnixAnswer send_over_unix(const std::filesystem::path& socket, const std::string& method, const std::string& path,
                          const std::string& body, std::chrono::milliseconds patience) {
  return attempt("no answer to " + method + " " + path, [&] {
    static std::once_flag once;
    std::call_once(once, [] { ::curl_global_init(CURL_GLOBAL_DEFAULT); });
    const std::unique_ptr<CURL, void (*)(CURL*)> curl(::curl_easy_init(), ::curl_easy_cleanup);
    curl_slist* list = nullptr;
    for (const char* line : {"Content-Type: application/json", "Accept: application/json", "Expect:"})
      if (curl_slist* const longer = ::curl_slist_append(list, line)) list = longer;
    const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(list, ::curl_slist_free_all);
    if (!curl || !headers) throw failure("libcurl does not start");
    Received received;
    const auto set = [&](auto option, auto value) {
      if (const CURLcode code = ::curl_easy_setopt(curl.get(), option, value); code != CURLE_OK)
        throw failure(::curl_easy_strerror(code));
    };
    set(CURLOPT_UNIX_SOCKET_PATH, socket.c_str());
    set(CURLOPT_URL, ("http://localhost" + path).c_str());
    set(CURLOPT_CUSTOMREQUEST, method.c_str());
    set(CURLOPT_HTTPHEADER, headers.get());
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_PROXY, "");
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(patience.count()));
    set(CURLOPT_FORBID_REUSE, 1L);
    set(CURLOPT_WRITEFUNCTION, take_body);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&received));
    set(CURLOPT_HEADERFUNCTION, take_head);
    set(CURLOPT_HEADERDATA, static_cast<void*>(&received));
    if (!body.empty()) {
      set(CURLOPT_POSTFIELDS, body.c_str());
      set(CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
    }
    const CURLcode code = ::curl_easy_perform(curl.get());
    if (code == CURLE_OPERATION_TIMEDOUT) throw failure("it says nothing in time");
    if (code == CURLE_WRITE_ERROR) throw failure("it is longer than any that is expected");
    if (code != CURLE_OK) throw failure(::curl_easy_strerror(code));
    UnixAnswer answer;
    ::curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &answer.status);
    answer.body = std::move(received.body);
    return answer;
  });
}

}  // namespace dsec::runners
