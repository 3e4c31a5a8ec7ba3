#pragma once

#include <elf.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files.h"

namespace dsec::tests {

/// A kernel module as far as tests need one: an ELF file with the section .modinfo.
inline std::string module_bytes(const std::vector<std::string>& lines) {
  std::string info;
  for (const std::string& line : lines) info += line + '\0';
  const std::string names = std::string("\0.modinfo\0.shstrtab\0", 20);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_type = ET_REL;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  header.e_shstrndx = 2;
  Elf64_Shdr sections[3] = {};
  sections[1].sh_name = 1;
  sections[1].sh_offset = sizeof header;
  sections[1].sh_size = info.size();
  sections[2].sh_name = 10;
  sections[2].sh_offset = sizeof header + info.size();
  sections[2].sh_size = names.size();
  header.e_shoff = sizeof header + info.size() + names.size();
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += info + names;
  return bytes.append(reinterpret_cast<const char*>(sections), sizeof sections);
}

/// lib/modules/RELEASE with modules of these names; what each needs stands in its .modinfo.
class ModuleFolder {
 public:
  explicit ModuleFolder(const std::filesystem::path& parent) : temporary_(parent) {}

  const std::filesystem::path& path() const { return temporary_.path(); }
  void add(const std::string& name, const std::vector<std::string>& lines) {
    write("kernel/" + name + ".ko", module_bytes(lines));
  }
  void write(const std::string& name, std::string_view content) {
    const std::filesystem::path file = path() / name;
    std::filesystem::create_directories(file.parent_path());
    write_file_atomic(file, content);
  }

 private:
  TempDirectory temporary_;
};

}  // namespace dsec::tests
