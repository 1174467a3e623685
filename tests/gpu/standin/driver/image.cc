#include "driver/image.h"

#include <elf.h>

#include <cstring>
#include <regex>

namespace standin {
namespace {

std::map<std::string, std::vector<char>> OfElf(const char* image) {
  std::map<std::string, std::vector<char>> found;
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(image);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(image + header->e_shoff);
  const char* names = image + sections[header->e_shstrndx].sh_offset;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(image + sections[i].sh_offset);
    const char* texts = image + sections[sections[i].sh_link].sh_offset;
    for (size_t k = 0; k < sections[i].sh_size / sizeof(Elf64_Sym); ++k) {
      const Elf64_Sym& symbol = symbols[k];
      if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= header->e_shnum) continue;
      if (symbol.st_size == 0) continue;
      const Elf64_Shdr& section = sections[symbol.st_shndx];
      const char* name = names + section.sh_name;
      const bool variable =
          std::strncmp(name, ".nv.global", 10) == 0 || std::strncmp(name, ".nv.constant3", 13) == 0;
      if (!variable) continue;
      std::vector<char> bytes(symbol.st_size, 0);
      if (section.sh_type != SHT_NOBITS) {
        std::memcpy(bytes.data(), image + section.sh_offset + symbol.st_value, bytes.size());
      }
      found[texts + symbol.st_name] = std::move(bytes);
    }
  }
  return found;
}

// Only byte variables, as XLA writes them: .global .align 128 .b8 NAME[4] = {0, 0, 128, 63};
std::map<std::string, std::vector<char>> OfText(const std::string& text) {
  std::map<std::string, std::vector<char>> found;
  static const std::regex variable(
      R"(\.(?:global|const)[^;={]*\.b8\s+([\w$]+)\[(\d+)\](?:\s*=\s*\{([^}]*)\})?)");
  for (std::sregex_iterator at(text.begin(), text.end(), variable), end; at != end; ++at) {
    std::vector<char> bytes(std::stoul((*at)[2]), 0);
    const std::string values = (*at)[3];
    const char* next = values.c_str();
    for (char& byte : bytes) {
      char* after = nullptr;
      const long value = std::strtol(next, &after, 0);
      if (after == next) break;
      byte = static_cast<char>(value);
      next = *after == ',' ? after + 1 : after;
    }
    found[(*at)[1]] = std::move(bytes);
  }
  return found;
}

}  // namespace

std::map<std::string, std::vector<char>> Variables(const void* image) {
  const auto* bytes = static_cast<const char*>(image);
  if (std::memcmp(bytes, ELFMAG, SELFMAG) == 0) return OfElf(bytes);
  constexpr unsigned char kContainer[] = {0x50, 0xed, 0x55, 0xba};
  if (std::memcmp(bytes, kContainer, sizeof(kContainer)) == 0) return {};
  return OfText(bytes);
}

}  // namespace standin
