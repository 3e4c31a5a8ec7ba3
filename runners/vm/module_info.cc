#include "runners/vm/module_info.h"

#include <elf.h>

#include <cstdint>
#include <cstring>

#include "core/base/error.h"

namespace dsec::runners {
namespace {

constexpr std::string_view kSection = ".modinfo";

// Every place comes from the file, which may be anything.
template <typename T>
T read_at(std::string_view bytes, std::uint64_t at) {
  if (at > bytes.size() || bytes.size() - at < sizeof(T)) throw failure("it is cut off");
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string_view part(std::string_view bytes, std::uint64_t at, std::uint64_t size) {
  if (at > bytes.size() || bytes.size() - at < size) throw failure("it is cut off");
  return bytes.substr(at, size);
}

std::string_view find_section(std::string_view bytes) {
  const auto header = read_at<Elf64_Ehdr>(bytes, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) throw failure("it is no ELF file");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB)
    throw failure("it is for another kind of processor");
  const auto section = [&](std::uint64_t index) {
    return read_at<Elf64_Shdr>(bytes, header.e_shoff + index * sizeof(Elf64_Shdr));
  };
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum)
    throw failure("its sections make no sense");
  const auto names_section = section(header.e_shstrndx);
  const std::string_view names = part(bytes, names_section.sh_offset, names_section.sh_size);
  for (std::uint64_t i = 0; i < header.e_shnum; ++i) {
    const auto each = section(i);
    if (each.sh_name >= names.size()) throw failure("its sections make no sense");
    const std::string_view name = names.substr(each.sh_name);
    if (name.substr(0, name.find('\0')) == kSection) return part(bytes, each.sh_offset, each.sh_size);
  }
  throw failure("it does not tell what it needs");
}

}  // namespace

std::vector<std::string> split_words(std::string_view text, std::string_view separators) {
  std::vector<std::string> words;
  while (true) {
    const auto begin = text.find_first_not_of(separators);
    if (begin == std::string_view::npos) return words;
    const auto end = std::min(text.find_first_of(separators, begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    text.remove_prefix(end);
  }
}

void add_softdep(std::string_view text, std::vector<std::string>& before) {
  bool counts = false;
  for (std::string& word : split_words(text, " \t")) {
    if (word.ends_with(':')) {
      counts = word == "pre:";
    } else if (counts) {
      before.push_back(std::move(word));
    }
  }
}

ModuleInfo read_module_info(std::string_view bytes) {
  ModuleInfo info;
  std::string_view rest = find_section(bytes);
  while (!rest.empty()) {
    const auto end = std::min(rest.find('\0'), rest.size());
    const std::string_view line = rest.substr(0, end);
    const auto value = [&](std::string_view key) { return line.substr(key.size()); };
    if (line.starts_with("depends=")) info.depends = split_words(value("depends="), ",");
    if (line.starts_with("softdep=")) add_softdep(value("softdep="), info.before);
    if (line.starts_with("alias=")) info.aliases.emplace_back(value("alias="));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return info;
}

}  // namespace dsec::runners
