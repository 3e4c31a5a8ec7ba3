#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct TarFields {
  char type = '0';
  unsigned mode = 0644;
  std::string uid = "0", gid = "0", mtime = "14524523000";  ///< octal digits, or raw bytes
  std::string link, data, magic = std::string("ustar\00000", 8);
  unsigned major = 0, minor = 0;
  std::vector<std::pair<std::string, std::string>> pax;
  std::string size;  ///< octal; empty: that of data
};

/// Writes tar archives block by block, so that a test can make every kind of odd one. Not the writer that the program
/// uses: what both got wrong would not be seen.
class TarBuilder {
 public:
  using Fields = TarFields;

  TarBuilder& add(std::string_view name, const Fields& fields) {
    std::string records;
    for (const auto& [key, value] : fields.pax) records += record(key, value);
    if (name.size() > 100) records += record("path", name);
    if (fields.link.size() > 100) records += record("linkpath", fields.link);
    if (!records.empty()) extended('x', records);
    return raw(name, fields);
  }
  TarBuilder& raw(std::string_view name, const Fields& fields) {
    std::array<char, 512> block{};
    const auto put = [&](std::size_t at, std::size_t size, std::string_view text) {
      text.substr(0, size).copy(block.data() + at, size);
    };
    char digits[32];
    put(0, 100, name);
    std::snprintf(digits, sizeof digits, "%07o", fields.mode);
    put(100, 7, digits);
    put(108, 8, fields.uid);
    put(116, 8, fields.gid);
    std::snprintf(digits, sizeof digits, "%011zo", fields.data.size());
    put(124, 12, fields.size.empty() ? digits : fields.size);
    put(136, 12, fields.mtime);
    block[156] = fields.type;
    put(157, 100, fields.link);
    put(257, 8, fields.magic);
    std::snprintf(digits, sizeof digits, "%07o", fields.major);
    put(329, 7, digits);
    std::snprintf(digits, sizeof digits, "%07o", fields.minor);
    put(337, 7, digits);
    put(148, 8, "        ");
    unsigned sum = 0;
    for (const char c : block) sum += static_cast<unsigned char>(c);
    std::snprintf(digits, sizeof digits, "%06o", sum);
    put(148, 7, std::string_view(digits, 7));
    bytes_.append(block.data(), block.size());
    return content(fields.data);
  }
  TarBuilder& extended(char type, const std::string& records) {
    return raw("PaxHeaders/x", {.type = type, .data = records});
  }
  TarBuilder& content(std::string_view data) {
    bytes_ += data;
    bytes_.append((512 - data.size() % 512) % 512, '\0');
    return *this;
  }

  TarBuilder& file(std::string_view name, std::string data = "", Fields fields = {}) {
    fields.data = std::move(data);
    return add(name, fields);
  }
  TarBuilder& dir(std::string_view name, unsigned mode = 0755, Fields fields = {}) {
    fields.type = '5';
    fields.mode = mode;
    return add(name, fields);
  }
  TarBuilder& symlink(std::string_view name, std::string target) {
    return add(name, {.type = '2', .mode = 0777, .link = std::move(target)});
  }
  TarBuilder& hardlink(std::string_view name, std::string target) {
    return add(name, {.type = '1', .link = std::move(target)});
  }

  std::string str() const { return bytes_ + std::string(1024, '\0'); }
  /// Without the end of the archive.
  const std::string& body() const { return bytes_; }

  static std::string record(std::string_view key, std::string_view value) {
    const std::size_t body = key.size() + value.size() + 3;
    std::size_t length = body;
    while (std::to_string(length).size() + body != length) length = std::to_string(length).size() + body;
    return std::to_string(length) + " " + std::string(key) + "=" + std::string(value) + "\n";
  }

 private:
  std::string bytes_;
};
