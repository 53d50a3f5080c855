// A shared library in memory: mapped, relocated, with its symbols. Nothing that the file says is
// believed, and none of its code is run.
#pragma once
#include <link.h>

#include <cstdint>
#include <string>
#include <vector>

namespace farm {

class ElfImage {
 public:
  // Maps the library of which `file` is the whole content. Throws an error of TVM's that says what
  // is wrong with it.
  explicit ElfImage(const std::string& file);

  // The address of a symbol, null when the library does not define it: of code, of a pointer that
  // may be written, of data. An error when something else is there.
  void* Code(const std::string& name) const;
  void** Pointer(const std::string& name) const;
  const char* Data(const std::string& name) const;

  // How many bytes there are from an address of `Data` to the end of its segment.
  size_t BytesFrom(const char* address) const;

 private:
  void ReadSegments(const std::string& file);
  void Map(const std::string& file);
  void ReadDynamicTable();
  template <typename R>
  void Relocate(size_t table, size_t nbytes);
  void Protect();

  size_t Find(const std::string& name) const;
  size_t Resolve(uint32_t index) const;
  size_t ValueOf(const ElfW(Sym) & symbol) const;
  ElfW(Sym) Symbol(uint32_t index) const;
  std::string NameOf(const ElfW(Sym) & symbol) const;
  const ElfW(Phdr) & SegmentOf(size_t offset) const;
  template <typename T>
  T Read(size_t offset) const;
  void CheckRange(size_t offset, size_t nbytes) const;

  struct Memory {
    Memory() = default;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory();
    char* begin = nullptr;
    size_t size = 0;  // in whole pages
  };

  std::vector<ElfW(Phdr)> segments_;
  Memory image_;
  size_t file_bytes_;          // no table can be larger
  size_t table_[DT_NUM] = {};  // the dynamic section, by tag
  size_t hash_ = 0;
};

}  // namespace farm
