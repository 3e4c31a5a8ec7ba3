#include "registry/web/s3_answer.h"

#include <charconv>

namespace dsec::registry {
namespace {

constexpr std::size_t kLongestMessage = 200;

// ASCII is all that our keys and S3's codes are made of.
std::string unescaped(std::string_view text) {
  static constexpr std::pair<std::string_view, char> kEntities[] = {
      {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
  std::string out;
  while (!text.empty()) {
    std::size_t taken = 1;
    char byte = text.front();
    for (const auto& [entity, meaning] : kEntities)
      if (text.starts_with(entity)) {
        byte = meaning;
        taken = entity.size();
      }
    if (text.starts_with("&#")) {
      const bool hex = text.size() > 2 && text[2] == 'x';
      unsigned code = 0;
      const char* const begin = text.data() + (hex ? 3 : 2);
      const auto [end, error] = std::from_chars(begin, text.data() + text.size(), code, hex ? 16 : 10);
      if (error == std::errc() && code < 128 && end != text.data() + text.size() && *end == ';') {
        byte = static_cast<char>(code);
        taken = static_cast<std::size_t>(end - text.data()) + 1;
      }
    }
    out += byte;
    text.remove_prefix(taken);
  }
  return out;
}

// Quoted for its control characters, not for the quotes.
std::string printable(const std::string& text) {
  const std::string quoted = quote(text.substr(0, kLongestMessage));
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

std::vector<std::string> xml_texts(std::string_view xml, const std::string& element) {
  const std::string open = "<" + element + ">", close = "</" + element + ">";
  std::vector<std::string> texts;
  for (std::size_t at = xml.find(open); at != std::string_view::npos; at = xml.find(open, at)) {
    at += open.size();
    const std::size_t end = xml.find(close, at);
    if (end == std::string_view::npos) break;
    texts.push_back(unescaped(xml.substr(at, end - at)));
    at = end + close.size();
  }
  return texts;
}

std::string first_xml_text(std::string_view xml, const std::string& element) {
  const std::vector<std::string> texts = xml_texts(xml, element);
  return texts.empty() ? "" : texts.front();
}

std::string escaped_xml(std::string_view text) {
  std::string out;
  for (const char c : text)
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&quot;" : std::string(1, c);
  return out;
}

S3Page S3Page::parse(std::string_view xml) {
  if (xml.find("<ListBucketResult") == std::string_view::npos)
    throw failure("the server answers something else than a listing").hint("is the endpoint one of an S3 server?");
  S3Page page{xml_texts(xml, "Key"), {}};
  if (first_xml_text(xml, "IsTruncated") != "true") return page;
  page.next = first_xml_text(xml, "NextContinuationToken");
  if (page.next.empty()) throw failure("the server has more to list and does not say where it goes on");
  return page;
}

std::string s3_code(const http::Answer& answer) {
  const std::string code = first_xml_text(answer.body, "Code");
  return code.size() <= 64 ? code : "";
}

Error s3_error(const http::Request& request, const http::Answer& answer, const std::string& bucket,
               const S3Target& target, const S3Environment& environment) {
  const std::string code = s3_code(answer), message = first_xml_text(answer.body, "Message");
  const bool no_bucket = code == "NoSuchBucket";
  const Error plain = http::answer_error(request, answer);
  Error error(no_bucket ? ErrorKind::Usage : plain.kind(), std::string(plain.chain().back()) +
                                                               (code.empty() ? "" : ": " + printable(code)) +
                                                               (message.empty() ? "" : ": " + printable(message)));
  for (const std::string& hint : plain.hints()) error.hint(hint);
  if (no_bucket)
    return std::move(error).hint("make the bucket " + quote(bucket) + " at " + target.authority +
                                 ", or correct the URL or the endpoint");
  const std::string* told = answer.header("x-amz-bucket-region");
  if (const std::string region = told ? *told : first_xml_text(answer.body, "Region");
      !region.empty() && region != target.region)
    return std::move(error).hint("AWS_REGION=" + printable(region) +
                                 ", or that 'region' of the registry in config.yaml");
  if (code == "RequestTimeTooSkewed") return std::move(error).hint("set the clock of this host");
  if (answer.status != 401 && answer.status != 403 && answer.status != 400) return error;
  if (environment.key_id.empty())
    return std::move(error).hint("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE: no keys were found in " +
                                 environment.origin);
  if (answer.status == 400 && code != "InvalidToken" && code != "ExpiredToken") return error;
  return std::move(error).hint("look at the keys, which are of " + environment.origin +
                               ", and at what the bucket's policy lets them do: dsec-registry(5) has the list");
}

}  // namespace dsec::registry
