#include "base/npy.h"

#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/dtype.h>

#include "base/io.h"

namespace farm {
namespace {

using tvm::runtime::Tensor;

const char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicBytes = sizeof(kMagic) - 1, kAlignment = 64, kMaxHeaderBytes = 1 << 16;
constexpr DLDevice kCpu = {kDLCPU, 0};

struct Kind {
  const char* dtype;
  const char* descr;  // after the byte order
};
constexpr Kind kKinds[] = {{"float32", "f4"}, {"float64", "f8"}, {"float16", "f2"}, {"int8", "i1"},
                           {"int16", "i2"},   {"int32", "i4"},   {"int64", "i8"},   {"uint8", "u1"},
                           {"uint16", "u2"},  {"uint32", "u4"},  {"uint64", "u8"},  {"bool", "b1"}};

struct Header {
  std::string descr;
  bool fortran = false;
  std::vector<int64_t> shape;
  size_t end = 0;  // where the data begin
};

// What follows "'key': " in the header's Python dictionary.
std::string After(const std::string& header, const std::string& key) {
  size_t at = header.find("'" + key + "'");
  at = at == std::string::npos ? at : header.find(':', at);
  at = at == std::string::npos ? at : header.find_first_not_of(' ', at + 1);
  return at == std::string::npos ? "" : header.substr(at);
}

std::vector<int64_t> ShapeFrom(const std::string& text) {
  std::vector<int64_t> shape;
  const char* at = text.c_str() + 1;
  for (char* end = nullptr; isdigit(static_cast<unsigned char>(*at)); at = end + strspn(end, ", "))
    shape.push_back(strtoll(at, &end, 10));
  return shape;
}

Header ReadHeader(const std::string& file, const std::string& path) {
  const IoError damaged(error::kArray, path + " is not a .npy file, or damaged");
  auto byte = [&file](size_t at) {
    return at < file.size() ? static_cast<unsigned char>(file[at]) : 0u;
  };
  if (file.compare(0, kMagicBytes, kMagic)) throw damaged;
  const unsigned version = byte(kMagicBytes);
  const size_t begin = version == 1 ? 10 : 12;
  if (version < 1 || version > 3)
    throw IoError(error::kArray, path + " is a .npy file of version " + std::to_string(version) +
                                     "; 1 to 3 can be read");
  size_t length = byte(8) | byte(9) << 8;
  if (version > 1)
    length |= static_cast<size_t>(byte(10)) << 16 | static_cast<size_t>(byte(11)) << 24;
  if (length > kMaxHeaderBytes || begin + length > file.size()) throw damaged;
  const std::string header = file.substr(begin, length), descr = After(header, "descr"),
                    shape = After(header, "shape");
  const std::string order = After(header, "fortran_order");
  if (descr.empty() || descr[0] != '\'' || shape.empty() || shape[0] != '(' || order.empty())
    throw damaged;
  return {descr.substr(1, descr.find('\'', 1) - 1), order[0] == 'T', ShapeFrom(shape),
          begin + length};
}

std::string DtypeOf(const std::string& descr, const std::string& path) {
  for (const Kind& kind : kKinds) {
    if (descr.substr(descr.empty() ? 0 : 1) != kind.descr) continue;
    if (descr[0] == '>')
      throw IoError(error::kArray, path + " is big-endian; save it anew on this kind of machine");
    return kind.dtype;
  }
  throw IoError(error::kArray, path + " holds elements of numpy's kind \"" + descr.substr(0, 20) +
                                   "\", which no model takes");
}

}  // namespace

std::string DtypeName(const DLDataType& dtype) { return tvm::ffi::DLDataTypeToString(dtype); }

std::string ShapeText(const int64_t* shape, size_t count) {
  std::string text = "(";
  for (size_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (count == 1 ? ",)" : ")");
}

Tensor ReadNpy(const std::string& path, const TensorSpec& spec) {
  const std::string file = ReadFile(path);
  const Header header = ReadHeader(file, path);
  const std::string dtype = DtypeOf(header.descr, path),
                    wanted = "the model's input \"" + spec.name + "\"";
  if (header.fortran && header.shape.size() > 1)
    throw IoError(error::kArray,
                  path + " is in Fortran order; save numpy.ascontiguousarray(x) instead");
  if (dtype != spec.dtype)
    throw IoError(error::kArray, path + " is " + dtype + ", " + wanted + " is " + spec.dtype);
  if (header.shape != spec.shape) {
    throw IoError(error::kArray,
                  path + " has the shape " + ShapeText(header.shape.data(), header.shape.size()) +
                      ", " + wanted + " has " + ShapeText(spec.shape.data(), spec.shape.size()));
  }
  const DLDataType type = tvm::ffi::StringToDLDataType(dtype);
  uint64_t bytes = (type.bits + 7) / 8;
  for (int64_t extent : header.shape) {
    // More than there is, whatever else it is.
    if (extent && bytes > file.size()) break;
    bytes *= static_cast<uint64_t>(extent);
  }
  if (bytes != file.size() - header.end)
    throw IoError(error::kArray, path + " is truncated, or has bytes too many");
  Tensor tensor = Tensor::Empty(tvm::ffi::Shape(header.shape), type, kCpu);
  if (bytes) tensor.CopyFromBytes(&file[header.end], static_cast<size_t>(bytes));
  return tensor;
}

void WriteNpy(const std::string& path, const Tensor& tensor) {
  const std::string dtype = DtypeName(tensor->dtype);
  const Kind* kind = nullptr;
  for (const Kind& known : kKinds) {
    if (dtype == known.dtype) kind = &known;
  }
  if (!kind) throw IoError(error::kArray, "cannot write " + path + ": numpy has no " + dtype);
  const char order = kind->descr[1] == '1' ? '|' : '<';
  std::string header = std::string("{'descr': '") + order + kind->descr +
                       "', 'fortran_order': False, 'shape': " +
                       ShapeText(tensor->shape, static_cast<size_t>(tensor->ndim)) + ", }";
  const size_t before = kMagicBytes + 4;
  header += std::string(kAlignment - 1 - (before + header.size()) % kAlignment, ' ') + "\n";
  const char version_and_length[] = {1, 0, static_cast<char>(header.size() & 0xff),
                                     static_cast<char>(header.size() >> 8)};
  std::string file = kMagic + std::string(version_and_length, sizeof(version_and_length)) + header;
  const size_t begin = file.size(), bytes = tvm::ffi::GetDataSize(*tensor.operator->());
  file.resize(begin + bytes);
  if (bytes) tensor.CopyToBytes(&file[begin], bytes);
  WriteFile(path, file.data(), file.size());
}

}  // namespace farm
