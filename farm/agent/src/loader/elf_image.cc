#include "loader/elf_image.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <algorithm>
#include <type_traits>

#include "base/error_code.h"
#include "loader/elf_file.h"
#include "loader/host_symbols.h"

namespace farm {
namespace {

// A model library wants few kinds of relocation, the same on every machine but for their numbers.
// It has no constructors (those of C's start files, which some linkers add, serve C++ programs and
// are left out), no thread-local storage and no libraries of its own. The format:
// https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
#if defined(__x86_64__)
constexpr unsigned kAbsolute = R_X86_64_64, kGlobal = R_X86_64_GLOB_DAT, kJump = R_X86_64_JUMP_SLOT,
                   kRelative = R_X86_64_RELATIVE;
#elif defined(__aarch64__)
constexpr unsigned kAbsolute = R_AARCH64_ABS64, kGlobal = R_AARCH64_GLOB_DAT,
                   kJump = R_AARCH64_JUMP_SLOT, kRelative = R_AARCH64_RELATIVE;
#elif defined(__arm__)
constexpr unsigned kAbsolute = R_ARM_ABS32, kGlobal = R_ARM_GLOB_DAT, kJump = R_ARM_JUMP_SLOT,
                   kRelative = R_ARM_RELATIVE;
#else
constexpr unsigned kAbsolute = R_RISCV_64, kGlobal = R_RISCV_64, kJump = R_RISCV_JUMP_SLOT,
                   kRelative = R_RISCV_RELATIVE;
#endif
constexpr bool kWide = sizeof(void*) == 8;
constexpr size_t kMaxImageBytes = kWide ? size_t{1} << 36 : size_t{1} << 30;
constexpr size_t kMaxSymbolBytes = 4096;
constexpr int kPackedRelocations = 36;  // DT_RELR

unsigned SymbolOf(size_t info) {
  return static_cast<unsigned>(kWide ? static_cast<uint64_t>(info) >> 32 : info >> 8);
}
unsigned TypeOf(size_t info) {
  return static_cast<unsigned>(kWide ? info & 0xffffffff : info & 0xff);
}

size_t Page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
size_t RoundDown(size_t n) { return n / Page() * Page(); }
size_t RoundUp(size_t n) { return RoundDown(n + Page() - 1); }

void Check(bool ok, const std::string& what, ErrorCode code = error::kLibrary) {
  if (!ok) TVM_FFI_THROW(RuntimeError) << Coded(code, "cannot load library: ") << what;
}

bool IsLoaded(const ElfW(Phdr) & segment) { return segment.p_type == PT_LOAD; }

}  // namespace

ElfImage::Memory::~Memory() {
  if (begin) munmap(begin, size);
}

ElfImage::ElfImage(const std::string& file) : file_bytes_(file.size()) {
  std::string why = WhyNotLoadable(file);
  Check(why.empty(), why);
  ReadSegments(file);
  Map(file);
  ReadDynamicTable();
  Relocate<ElfW(Rel)>(table_[DT_REL], table_[DT_RELSZ]);
  Relocate<ElfW(Rela)>(table_[DT_RELA], table_[DT_RELASZ]);
  if (table_[DT_PLTREL] == DT_REL) Relocate<ElfW(Rel)>(table_[DT_JMPREL], table_[DT_PLTRELSZ]);
  if (table_[DT_PLTREL] == DT_RELA) Relocate<ElfW(Rela)>(table_[DT_JMPREL], table_[DT_PLTRELSZ]);
  Protect();
}

void ElfImage::ReadSegments(const std::string& file) {
  ElfW(Ehdr) header;
  memcpy(&header, file.data(), sizeof(header));
  Check(header.e_phentsize == sizeof(ElfW(Phdr)),
        "corrupted: its program headers have another size");
  Check(header.e_phoff <= file.size() &&
            header.e_phnum <= (file.size() - header.e_phoff) / sizeof(ElfW(Phdr)),
        "truncated");
  segments_.resize(header.e_phnum);
  if (header.e_phnum)
    memcpy(segments_.data(), &file[header.e_phoff], header.e_phnum * sizeof(ElfW(Phdr)));
  for (const auto& s : segments_) {
    Check(s.p_type != PT_TLS, "thread-local storage is not supported");
    if (!IsLoaded(s)) continue;
    Check(s.p_offset <= file.size() && s.p_filesz <= file.size() - s.p_offset, "truncated");
    Check(s.p_filesz <= s.p_memsz && s.p_memsz <= kMaxImageBytes && s.p_vaddr <= kMaxImageBytes,
          "corrupted: a segment has no sense");
    image_.size = std::max<size_t>(image_.size, s.p_vaddr + s.p_memsz);
  }
  Check(image_.size > 0, "corrupted: it has nothing to load");
}

void ElfImage::Map(const std::string& file) {
  image_.size = RoundUp(image_.size);
  void* memory = mmap(nullptr, image_.size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  Check(memory != MAP_FAILED,
        "it wants " + std::to_string(image_.size) + " bytes of memory: " + strerror(errno),
        error::kNoMemory);
  image_.begin = static_cast<char*>(memory);
  for (const auto& s : segments_) {
    if (IsLoaded(s) && s.p_filesz) memcpy(image_.begin + s.p_vaddr, &file[s.p_offset], s.p_filesz);
  }
}

void ElfImage::ReadDynamicTable() {
  auto dynamic = std::find_if(segments_.begin(), segments_.end(),
                              [](const auto& s) { return s.p_type == PT_DYNAMIC; });
  Check(dynamic != segments_.end(), "it has no dynamic section");
  for (size_t at = dynamic->p_vaddr;; at += sizeof(ElfW(Dyn))) {
    auto entry = Read<ElfW(Dyn)>(at);
    if (entry.d_tag == DT_NULL) break;
    Check(entry.d_tag != kPackedRelocations,
          "packed relocations are not supported; link without -z pack-relative-relocs");
    if (entry.d_tag > 0 && entry.d_tag < DT_NUM) table_[entry.d_tag] = entry.d_un.d_val;
    if (entry.d_tag == DT_GNU_HASH) hash_ = entry.d_un.d_val;
  }
  Check(table_[DT_SYMTAB] && table_[DT_STRTAB], "it has no symbols");
  Check(hash_, "it has no GNU hash table; link with --hash-style=gnu");
}

template <typename R>
void ElfImage::Relocate(size_t table, size_t nbytes) {
  Check(nbytes <= file_bytes_, "corrupted: its relocations are larger than the file");
  for (size_t i = 0; i < nbytes / sizeof(R); ++i) {
    auto r = Read<R>(table + i * sizeof(R));
    size_t addend = 0;
    if constexpr (std::is_same_v<R, ElfW(Rela)>) {
      addend = static_cast<size_t>(r.r_addend);
    } else {
      addend = Read<size_t>(r.r_offset);
    }
    const unsigned type = TypeOf(r.r_info);
    size_t value = 0;
    if (type == kRelative) {
      Check(addend <= image_.size, "corrupted: a relocation leads outside");
      value = reinterpret_cast<size_t>(image_.begin) + addend;
    } else if (type == kAbsolute) {
      value = Resolve(SymbolOf(r.r_info)) + addend;
    } else if (type == kGlobal || type == kJump) {
      value = Resolve(SymbolOf(r.r_info));
    } else {
      Check(type == 0, "relocation type " + std::to_string(type) + " is not supported");
      continue;
    }
    CheckRange(r.r_offset, sizeof(value));
    memcpy(image_.begin + r.r_offset, &value, sizeof(value));
  }
}

// Data stays writable, code becomes executable, never both.
void ElfImage::Protect() {
  for (const auto& code : segments_) {
    if (!IsLoaded(code) || !(code.p_flags & PF_X)) continue;
    size_t begin = RoundDown(code.p_vaddr), end = RoundUp(code.p_vaddr + code.p_memsz);
    for (const auto& data : segments_) {
      bool apart = data.p_vaddr >= end || data.p_vaddr + data.p_memsz <= begin;
      Check(!IsLoaded(data) || !(data.p_flags & PF_W) || apart,
            "its code and data share a page of " + std::to_string(Page()) +
                " bytes; link with -z max-page-size=65536");
    }
    char* first = image_.begin + code.p_vaddr;
    __builtin___clear_cache(first, first + code.p_filesz);
    Check(mprotect(image_.begin + begin, end - begin, PROT_READ | PROT_EXEC) == 0,
          std::string("mprotect: ") + strerror(errno));
  }
}

void* ElfImage::Code(const std::string& name) const {
  size_t value = Find(name);
  if (!value) return nullptr;
  Check(SegmentOf(value).p_flags & PF_X, "corrupted: " + name + " is no code");
  return image_.begin + value;
}

void** ElfImage::Pointer(const std::string& name) const {
  size_t value = Find(name);
  if (!value) return nullptr;
  const auto& segment = SegmentOf(value);
  const bool fits =
      segment.p_vaddr + segment.p_memsz - value >= sizeof(void*) && value % sizeof(void*) == 0;
  Check(fits && (segment.p_flags & PF_W), "corrupted: " + name + " is no pointer");
  return reinterpret_cast<void**>(image_.begin + value);
}

const char* ElfImage::Data(const std::string& name) const {
  size_t value = Find(name);
  return value ? image_.begin + value : nullptr;
}

size_t ElfImage::BytesFrom(const char* address) const {
  const size_t offset = static_cast<size_t>(address - image_.begin);
  const auto& segment = SegmentOf(offset);
  return segment.p_vaddr + segment.p_memsz - offset;
}

const ElfW(Phdr) & ElfImage::SegmentOf(size_t offset) const {
  auto found = std::find_if(segments_.begin(), segments_.end(), [offset](const auto& s) {
    return IsLoaded(s) && offset >= s.p_vaddr && offset - s.p_vaddr < s.p_memsz;
  });
  Check(found != segments_.end(), "corrupted: a symbol is in no segment");
  return *found;
}

// Where in the image a symbol is that the library defines; 0 when it does not. The GNU hash table:
// buckets, first symbol, bloom words, shift; bloom filter; a bucket's first symbol; the symbols'
// hashes, the last of a bucket odd.
size_t ElfImage::Find(const std::string& name) const {
  uint32_t h = 5381;
  for (unsigned char c : name) h = h * 33 + c;
  auto buckets = Read<uint32_t>(hash_), first = Read<uint32_t>(hash_ + 4),
       bloom = Read<uint32_t>(hash_ + 8);
  Check(buckets > 0, "corrupted: its hash table is empty");
  size_t bucket_table = hash_ + 16 + size_t{bloom} * sizeof(size_t),
         chain = bucket_table + size_t{buckets} * 4;
  auto begin = Read<uint32_t>(bucket_table + size_t{h % buckets} * 4);
  if (begin < first) return 0;
  for (size_t i = begin; i - begin < file_bytes_ / sizeof(uint32_t); ++i) {
    auto hash = Read<uint32_t>(chain + (i - first) * 4);
    if ((hash | 1) == (h | 1)) {
      auto symbol = Symbol(static_cast<uint32_t>(i));
      if (symbol.st_shndx != SHN_UNDEF && NameOf(symbol) == name) return ValueOf(symbol);
    }
    if (hash & 1) return 0;
  }
  Check(false, "corrupted: its hash table has no end");
  return 0;
}

size_t ElfImage::Resolve(uint32_t index) const {
  auto symbol = Symbol(index);
  if (symbol.st_shndx != SHN_UNDEF) return reinterpret_cast<size_t>(image_.begin) + ValueOf(symbol);
  std::string name = NameOf(symbol);
  void* address = HostSymbol(name);
  Check(address || symbol.st_info >> 4 == STB_WEAK, "undefined symbol " + name);
  return reinterpret_cast<size_t>(address);
}

ElfW(Sym) ElfImage::Symbol(uint32_t index) const {
  return Read<ElfW(Sym)>(table_[DT_SYMTAB] + size_t{index} * sizeof(ElfW(Sym)));
}

size_t ElfImage::ValueOf(const ElfW(Sym) & symbol) const {
  int type = symbol.st_info & 0xf;
  Check(type != STT_TLS && type != STT_GNU_IFUNC,
        "symbol " + NameOf(symbol) + " is of a kind that is not supported");
  CheckRange(symbol.st_value, 1);
  return symbol.st_value;
}

std::string ElfImage::NameOf(const ElfW(Sym) & symbol) const {
  size_t begin = table_[DT_STRTAB] + symbol.st_name;
  CheckRange(begin, 1);
  const size_t most = std::min(kMaxSymbolBytes, image_.size - begin);
  const size_t size = strnlen(image_.begin + begin, most);
  Check(size < most, "corrupted: a name has no end");
  return std::string(image_.begin + begin, size);
}

template <typename T>
T ElfImage::Read(size_t offset) const {
  CheckRange(offset, sizeof(T));
  T value;
  memcpy(&value, image_.begin + offset, sizeof(T));
  return value;
}

void ElfImage::CheckRange(size_t offset, size_t nbytes) const {
  Check(offset <= image_.size && nbytes <= image_.size - offset,
        "corrupted: an offset leads outside");
}

}  // namespace farm
