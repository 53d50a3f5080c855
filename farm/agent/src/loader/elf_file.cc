#include "loader/elf_file.h"

#include <elf.h>
#include <string.h>

#include <cstddef>
#include <cstdint>

namespace farm {
namespace {

constexpr size_t kTypeOffset = 16, kMachineOffset = 18;

struct Machine {
  uint16_t number;
  const char* name;
};
constexpr Machine kMachines[] = {
    {EM_X86_64, "x86_64"}, {EM_386, "x86 (32-bit)"}, {EM_AARCH64, "aarch64"},
    {EM_ARM, "armv7"},     {EM_RISCV, "riscv"},      {EM_MIPS, "mips"},
    {EM_PPC64, "ppc64"},   {EM_S390, "s390"},        {EM_LOONGARCH, "loongarch"}};

template <typename T>
T At(const std::string& file, size_t offset) {
  T value{};
  if (offset + sizeof(T) <= file.size()) memcpy(&value, &file[offset], sizeof(T));
  return value;
}

std::string NameOf(const std::string& file) {
  auto number = At<uint16_t>(file, kMachineOffset);
  bool wide = file[EI_CLASS] == ELFCLASS64;
  std::string name = "machine " + std::to_string(number);
  for (const Machine& machine : kMachines) {
    if (machine.number == number) name = machine.name;
  }
  if (number == EM_RISCV) name += wide ? "64" : "32";
  if (number == EM_ARM) {
    auto flags = At<uint32_t>(file, offsetof(Elf32_Ehdr, e_flags));
    name += flags & EF_ARM_ABI_FLOAT_HARD ? " (hard-float)" : " (soft-float)";
  }
  if (file[EI_DATA] != ELFDATA2LSB) name += ", big-endian";
  return name;
}

std::string OwnName() {
#if defined(__ARM_PCS_VFP)
  return std::string(kMachineName) + " (hard-float)";
#else
  return kMachineName;
#endif
}

}  // namespace

std::string WhyNotLoadable(const std::string& file) {
  if (file.empty()) return "the file is empty";
  if (file.compare(0, SELFMAG, ELFMAG)) return "not an ELF library";
  if (file.size() < sizeof(Elf64_Ehdr))
    return "the library is truncated: " + std::to_string(file.size()) + " bytes";
  std::string name = NameOf(file);
  if (name != OwnName()) {
    std::string why = "library is for " + name + ", this device is " + OwnName();
    bool soft = name == "armv7 (soft-float)" && std::string(kMachineName) == "armv7";
    return why + (soft ? ": compile for a target with \"mfloat-abi\": \"hard\"" : "");
  }
  if (At<uint16_t>(file, kTypeOffset) != ET_DYN)
    return "not a shared library, but another kind of ELF file";
  return "";
}

}  // namespace farm
