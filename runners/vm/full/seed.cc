#include "runners/vm/full/seed.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <utility>

#include "core/base/error.h"

namespace dsec::runners {
namespace {

constexpr std::size_t kSector = 2048;
// Sixteen sectors belong to nobody; then the volume, the end of descriptors, both tables of paths, the root directory.
constexpr std::uint32_t kVolumeAt = 16, kLittlePathsAt = 18, kBigPathsAt = 19, kRootAt = 20, kFilesAt = 21;

void put(std::string& bytes, std::size_t at, std::uint64_t number, std::size_t size, bool big) {
  for (std::size_t i = 0; i < size; ++i)
    bytes.at(at + i) = static_cast<char>(number >> (8 * (big ? size - 1 - i : i)) & 0xff);
}

// Numbers stand there in both orders.
void put_both(std::string& bytes, std::size_t at, std::uint64_t number, std::size_t size) {
  put(bytes, at, number, size, false);
  put(bytes, at + size, number, size, true);
}

void put_text(std::string& bytes, std::size_t at, std::string_view text, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) bytes.at(at + i) = i < text.size() ? text[i] : ' ';
}

std::size_t sectors_of(std::size_t bytes) { return (bytes + kSector - 1) / kSector; }

// 33 bytes, the name, and a byte more where that is odd. No time: 1970 would be as wrong as 1900.
std::string directory_record(std::string_view name, std::uint32_t at, std::size_t size, bool directory) {
  std::string record(33 + name.size() + (name.size() % 2 == 0 ? 1 : 0), '\0');
  put(record, 0, record.size(), 1, false);
  put_both(record, 2, at, 4);
  put_both(record, 10, size, 4);
  record[25] = directory ? 2 : 0;
  put_both(record, 28, 1, 2);  // volumes
  put(record, 32, name.size(), 1, false);
  record.replace(33, name.size(), name);
  return record;
}

std::string paths(bool big) {
  std::string table(10, '\0');
  put(table, 0, 1, 1, big);
  put(table, 2, kRootAt, 4, big);
  put(table, 6, 1, 2, big);
  return table;
}

std::string volume(std::size_t sectors) {
  std::string bytes(kSector, '\0');
  bytes[0] = bytes[6] = 1;
  put_text(bytes, 1, "CD001", 5);
  put_text(bytes, 8, "", 32);
  put_text(bytes, 40, "cidata", 32);
  put_both(bytes, 80, sectors, 4);
  for (const std::size_t at : {std::size_t{120}, std::size_t{124}}) put_both(bytes, at, 1, 2);
  put_both(bytes, 128, kSector, 2);
  put_both(bytes, 132, paths(false).size(), 4);
  put(bytes, 140, kLittlePathsAt, 4, false);
  put(bytes, 148, kBigPathsAt, 4, true);
  bytes.replace(156, 34, directory_record(std::string_view("\0", 1), kRootAt, kSector, true));
  put_text(bytes, 190, "", 623);  // whom it is of
  for (std::size_t date = 0; date < 4; ++date) {
    for (std::size_t i = 0; i < 16; ++i) bytes[813 + date * 17 + i] = '0';
  }
  bytes[881] = 1;
  return bytes;
}

}  // namespace

std::string make_seed(std::vector<SeedFile> files) {
  std::sort(files.begin(), files.end(), [](const SeedFile& a, const SeedFile& b) { return a.name < b.name; });
  std::string root = directory_record(std::string_view("\0", 1), kRootAt, kSector, true) +
                     directory_record(std::string_view("\1", 1), kRootAt, kSector, true);
  std::string contents;
  for (const SeedFile& file : files) {
    std::string name = file.name;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    const auto at = static_cast<std::uint32_t>(kFilesAt + contents.size() / kSector);
    root += directory_record(name + ";1", at, file.content.size(), false);
    contents += file.content;
    contents.resize(sectors_of(contents.size()) * kSector);
  }
  if (root.size() > kSector) throw failure("a seed has no room for so many files");
  root.resize(kSector);
  std::string end(kSector, '\0'), little = paths(false), big = paths(true);
  end[0] = static_cast<char>(0xff);
  put_text(end, 1, "CD001", 5);
  end[6] = 1;
  little.resize(kSector);
  big.resize(kSector);
  return std::string(kVolumeAt * kSector, '\0') + volume(kFilesAt + contents.size() / kSector) + end + little + big +
         root + contents;
}

std::vector<SeedFile> seed_files(std::string_view user_data, std::string_view instance, std::string_view hostname) {
  return {{"user-data", std::string(user_data)},
          {"meta-data", "instance-id: " + std::string(instance) + "\nlocal-hostname: " + std::string(hostname) + "\n"}};
}

}  // namespace dsec::runners
