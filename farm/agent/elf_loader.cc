#include "elf_loader.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/memory.h>
#include <tvm/ffi/reflection/registry.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "elf_file.h"
#include "host_symbols.h"
#include "io.h"
#include "module_internal.h"

namespace farm {
namespace {

// A model library wants few kinds of relocation, the same on every machine but for their numbers. It has no
// constructors (those of C's start files, which some linkers add, serve C++ programs and are left out), no thread-local
// storage and no libraries of its own. The format: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
#if defined(__x86_64__)
constexpr unsigned kAbsolute = R_X86_64_64, kGlobal = R_X86_64_GLOB_DAT, kJump = R_X86_64_JUMP_SLOT, kRelative = R_X86_64_RELATIVE;
#elif defined(__aarch64__)
constexpr unsigned kAbsolute = R_AARCH64_ABS64, kGlobal = R_AARCH64_GLOB_DAT, kJump = R_AARCH64_JUMP_SLOT,
                   kRelative = R_AARCH64_RELATIVE;
#elif defined(__arm__)
constexpr unsigned kAbsolute = R_ARM_ABS32, kGlobal = R_ARM_GLOB_DAT, kJump = R_ARM_JUMP_SLOT, kRelative = R_ARM_RELATIVE;
#else
constexpr unsigned kAbsolute = R_RISCV_64, kGlobal = R_RISCV_64, kJump = R_RISCV_JUMP_SLOT, kRelative = R_RISCV_RELATIVE;
#endif
constexpr bool kWide = sizeof(void*) == 8;
constexpr size_t kMaxImageBytes = kWide ? size_t{1} << 36 : size_t{1} << 30;
constexpr int kPackedRelocations = 36;  // DT_RELR

unsigned SymbolOf(size_t info) { return static_cast<unsigned>(kWide ? static_cast<uint64_t>(info) >> 32 : info >> 8); }
unsigned TypeOf(size_t info) { return static_cast<unsigned>(kWide ? info & 0xffffffff : info & 0xff); }

void Check(bool ok, const std::string& what) {
  if (!ok) TVM_FFI_THROW(RuntimeError) << "cannot load library: " << what;
}

// A library in memory. Nothing that the file says is believed: every offset is checked before it is followed.
class MappedLibrary final : public tvm::ffi::Library {
 public:
  explicit MappedLibrary(const std::string& path) {
    std::string file = farm::ReadFile(path);
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

  ~MappedLibrary() final {
    if (base_) munmap(base_, size_);
  }

  void* GetSymbol(const tvm::ffi::String& name) final {
    size_t value = Find(name);
    if (!value) return nullptr;
    if (name == tvm::ffi::symbol::tvm_ffi_library_bin) {
      // What the model carries starts with its size, which TVM takes as it is.
      auto nbytes = Read<uint64_t>(value);
      Check(nbytes <= size_ - value - sizeof(nbytes), "corrupted: its data is larger than the file");
    }
    return base_ + value;
  }

 private:
  void ReadSegments(const std::string& file) {
    ElfW(Ehdr) header;
    memcpy(&header, file.data(), sizeof(header));
    Check(header.e_phentsize == sizeof(ElfW(Phdr)), "corrupted: its program headers have another size");
    Check(header.e_phoff <= file.size() && header.e_phnum <= (file.size() - header.e_phoff) / sizeof(ElfW(Phdr)), "truncated");
    segments_.resize(header.e_phnum);
    if (header.e_phnum) memcpy(segments_.data(), &file[header.e_phoff], header.e_phnum * sizeof(ElfW(Phdr)));
    for (const auto& s : segments_) {
      Check(s.p_type != PT_TLS, "thread-local storage is not supported");
      if (s.p_type != PT_LOAD) continue;
      Check(s.p_offset <= file.size() && s.p_filesz <= file.size() - s.p_offset, "truncated");
      Check(s.p_filesz <= s.p_memsz && s.p_memsz <= kMaxImageBytes && s.p_vaddr <= kMaxImageBytes, "corrupted: a segment has no sense");
      size_ = std::max<size_t>(size_, s.p_vaddr + s.p_memsz);
    }
    Check(size_ > 0, "corrupted: it has nothing to load");
  }

  void Map(const std::string& file) {
    size_ = RoundUp(size_);
    void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    Check(memory != MAP_FAILED, "it wants " + std::to_string(size_) + " bytes of memory: " + strerror(errno));
    base_ = static_cast<char*>(memory);
    for (const auto& s : segments_) {
      if (s.p_type == PT_LOAD) memcpy(base_ + s.p_vaddr, &file[s.p_offset], s.p_filesz);
    }
  }

  void ReadDynamicTable() {
    auto dynamic = std::find_if(segments_.begin(), segments_.end(), [](const auto& s) { return s.p_type == PT_DYNAMIC; });
    Check(dynamic != segments_.end(), "it has no dynamic section");
    for (size_t at = dynamic->p_vaddr;; at += sizeof(ElfW(Dyn))) {
      auto entry = Read<ElfW(Dyn)>(at);
      if (entry.d_tag == DT_NULL) break;
      Check(entry.d_tag != kPackedRelocations, "packed relocations are not supported; link without -z pack-relative-relocs");
      if (entry.d_tag > 0 && entry.d_tag < DT_NUM) table_[entry.d_tag] = entry.d_un.d_val;
      if (entry.d_tag == DT_GNU_HASH) hash_ = entry.d_un.d_val;
    }
    Check(table_[DT_SYMTAB] && table_[DT_STRTAB], "it has no symbols");
    Check(hash_, "it has no GNU hash table; link with --hash-style=gnu");
  }

  template <typename R>
  void Relocate(size_t table, size_t nbytes) {
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
        Check(addend <= size_, "corrupted: a relocation leads outside");
        value = reinterpret_cast<size_t>(base_) + addend;
      } else if (type == kAbsolute) {
        value = Resolve(SymbolOf(r.r_info)) + addend;
      } else if (type == kGlobal || type == kJump) {
        value = Resolve(SymbolOf(r.r_info));
      } else {
        Check(type == 0, "relocation type " + std::to_string(type) + " is not supported");
        continue;
      }
      CheckRange(r.r_offset, sizeof(value));
      memcpy(base_ + r.r_offset, &value, sizeof(value));
    }
  }

  // Data stays writable, code becomes executable, never both.
  void Protect() {
    for (const auto& code : segments_) {
      if (code.p_type != PT_LOAD || !(code.p_flags & PF_X)) continue;
      size_t begin = RoundDown(code.p_vaddr), end = RoundUp(code.p_vaddr + code.p_memsz);
      for (const auto& data : segments_) {
        bool apart = data.p_vaddr >= end || data.p_vaddr + data.p_memsz <= begin;
        Check(data.p_type != PT_LOAD || !(data.p_flags & PF_W) || apart,
              "its code and data share a page of " + std::to_string(Page()) + " bytes; link with -z max-page-size=65536");
      }
      Check(mprotect(base_ + begin, end - begin, PROT_READ | PROT_EXEC) == 0, std::string("mprotect: ") + strerror(errno));
    }
    __builtin___clear_cache(base_, base_ + size_);
  }

  // The address in the image of a symbol that the library defines; 0 when it does not. The GNU hash table:
  // buckets, first symbol, bloom words, shift; bloom filter; a bucket's first symbol; the symbols' hashes, the last of a bucket odd.
  size_t Find(const tvm::ffi::String& name) {
    uint32_t h = 5381;
    for (size_t i = 0; i < name.size(); ++i) h = h * 33 + static_cast<unsigned char>(name.data()[i]);
    auto buckets = Read<uint32_t>(hash_), first = Read<uint32_t>(hash_ + 4), bloom = Read<uint32_t>(hash_ + 8);
    Check(buckets > 0, "corrupted: its hash table is empty");
    size_t bucket_table = hash_ + 16 + size_t{bloom} * sizeof(size_t), chain = bucket_table + size_t{buckets} * 4;
    auto i = Read<uint32_t>(bucket_table + size_t{h % buckets} * 4);
    if (i < first) return 0;
    for (;; ++i) {
      auto hash = Read<uint32_t>(chain + size_t{i - first} * 4);
      if ((hash | 1) == (h | 1)) {
        auto symbol = Symbol(i);
        if (symbol.st_shndx != SHN_UNDEF && NameOf(symbol) == std::string(name.data(), name.size())) return ValueOf(symbol);
      }
      if (hash & 1) return 0;
    }
  }

  size_t Resolve(uint32_t index) {
    auto symbol = Symbol(index);
    if (symbol.st_shndx != SHN_UNDEF) return reinterpret_cast<size_t>(base_) + ValueOf(symbol);
    std::string name = NameOf(symbol);
    void* address = HostSymbol(name);
    Check(address || symbol.st_info >> 4 == STB_WEAK, "undefined symbol " + name);
    return reinterpret_cast<size_t>(address);
  }

  ElfW(Sym) Symbol(uint32_t index) const { return Read<ElfW(Sym)>(table_[DT_SYMTAB] + size_t{index} * sizeof(ElfW(Sym))); }

  size_t ValueOf(const ElfW(Sym) & symbol) const {
    int type = symbol.st_info & 0xf;
    Check(type != STT_TLS && type != STT_GNU_IFUNC, "symbol " + NameOf(symbol) + " is of a kind that is not supported");
    CheckRange(symbol.st_value, 1);
    return symbol.st_value;
  }

  std::string NameOf(const ElfW(Sym) & symbol) const {
    size_t begin = table_[DT_STRTAB] + symbol.st_name;
    CheckRange(begin, 1);
    const void* end = memchr(base_ + begin, 0, size_ - begin);
    Check(end, "corrupted: a name has no end");
    return base_ + begin;
  }

  template <typename T>
  T Read(size_t offset) const {
    CheckRange(offset, sizeof(T));
    T value;
    memcpy(&value, base_ + offset, sizeof(T));
    return value;
  }

  void CheckRange(size_t offset, size_t nbytes) const {
    Check(offset <= size_ && nbytes <= size_ - offset, "corrupted: an offset leads outside");
  }

  static size_t Page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
  static size_t RoundDown(size_t n) { return n / Page() * Page(); }
  static size_t RoundUp(size_t n) { return RoundDown(n + Page() - 1); }

  std::vector<ElfW(Phdr)> segments_;
  char* base_ = nullptr;
  size_t size_ = 0;
  size_t table_[DT_NUM] = {};  // the dynamic section, by tag
  size_t hash_ = 0;
};

}  // namespace

void RegisterElfLoader() {
  namespace ffi = tvm::ffi;
  auto load = [](const ffi::String& path, const ffi::String&) {
    return ffi::CreateLibraryModule(ffi::make_object<MappedLibrary>(std::string(path)));
  };
  ffi::Function::SetGlobal("ffi.Module.load_from_file.so", ffi::Function::FromTyped(load), /*override=*/true);
}

}  // namespace farm
