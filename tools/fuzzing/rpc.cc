// A client's packets after the greeting, to TVM's own server loop. Input: one byte (see Client),
// then packets. A packet's addresses and functions are what the server gave out before, so that the
// wild ones of a fuzzer would say nothing about the framing: the session that is served here takes
// all that TVM's has, and follows none.
#include <string.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/device_api.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/io.h"
#include "fuzzing.h"
#include "rpc/packet_check.h"
#include "rpc_endpoint.h"
#include "rpc_session.h"

namespace {

namespace ffi = tvm::ffi;
using tvm::runtime::RPCCode;

constexpr uint64_t kMaxPacketBytes = 1 << 20;
constexpr char kSession[] = "fuzzing.Session";

template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string Packet(const std::string& body) { return Bytes<uint64_t>(body.size()) + body; }
std::string Text(const std::string& text) {
  return Bytes<int32_t>(ffi::TypeIndex::kTVMFFIRawStr) + Bytes<uint64_t>(text.size()) + text;
}

// Every session begins like this; the fuzzer's packets come after it.
std::string Beginning() {
  const std::string version = tvm::runtime::kRPCProtocolVer;
  return Packet(Bytes(RPCCode::kInitServer) + Bytes<uint64_t>(version.size()) + version +
                Bytes<int32_t>(1) + Text(kSession));
}

// The first byte says how the client behaves: the 7 low bits are the size of the pieces that come
// (0: as much as fits), the highest bit says that it has hung up without reading any answer.
class Client final : public tvm::runtime::RPCChannel {
 public:
  Client(const uint8_t* data, size_t size) : piece_(data[0] & 127), gone_(data[0] & 128) {
    bytes_ = Beginning() + std::string(reinterpret_cast<const char*>(data) + 1, size - 1);
  }

  size_t Send(const void*, size_t size) final {
    if (gone_ && at_ == bytes_.size())
      throw farm::IoError(farm::error::kFile, "write: Broken pipe");
    return size;
  }

  size_t Recv(void* data, size_t size) final {
    size_t n = std::min(size, bytes_.size() - at_);
    if (piece_) n = std::min(n, piece_);
    memcpy(data, bytes_.data() + at_, n);
    at_ += n;
    return n;
  }

 private:
  std::string bytes_;
  size_t at_ = 0, piece_;
  bool gone_;
};

class Device final : public tvm::runtime::DeviceAPI {
 public:
  void SetDevice(tvm::Device) final {}
  void GetAttr(tvm::Device, tvm::runtime::DeviceAttrKind kind, ffi::Any* value) final {
    *value = static_cast<int>(kind);
  }
  void* AllocDataSpace(tvm::Device, size_t nbytes, size_t, DLDataType) final {
    return reinterpret_cast<void*>(nbytes | 1);
  }
  void FreeDataSpace(tvm::Device, void*) final {}
  void StreamSync(tvm::Device, TVMStreamHandle) final {}
  void CopyDataFromTo(const void*, size_t, void*, size_t, size_t, tvm::Device, tvm::Device,
                      DLDataType, TVMStreamHandle) final {}
};

class Session final : public tvm::runtime::RPCSession {
 public:
  PackedFuncHandle GetFunction(const std::string& name) final {
    return reinterpret_cast<void*>(name.size());
  }

  // Answers with one of the arguments, or with something of another kind.
  void CallFunc(PackedFuncHandle function, ffi::PackedArgs args,
                const FEncodeReturn& answer) final {
    const auto number = reinterpret_cast<size_t>(function);
    CLAIM(number != 0);
    Touch(args);
    if (number % 4 == 1) TVM_FFI_THROW(ValueError) << "the function fails";
    ffi::AnyView values[2] = {0, nullptr};
    if (number % 4 == 2 && args.size() > 0) {
      ffi::AnyView arg = args[static_cast<int>(number / 4 % static_cast<size_t>(args.size()))];
      const bool wild = arg.type_index() == ffi::TypeIndex::kTVMFFIFunction ||
                        arg.type_index() == ffi::TypeIndex::kTVMFFIModule;
      if (!wild) values[1] = arg;
    }
    if (number % 4 == 3) values[1] = reinterpret_cast<void*>(number);
    answer(ffi::PackedArgs(values, 2));
  }

  void CopyToRemote(void* from, DLTensor* to, uint64_t nbytes) final {
    ReadAll(static_cast<const char*>(from), nbytes);
    CLAIM(to->byte_offset + nbytes <= ffi::GetDataSize(*to));
  }
  void CopyFromRemote(DLTensor* from, void* to, uint64_t nbytes) final {
    memset(to, 1, nbytes);
    CLAIM(from->byte_offset + nbytes <= ffi::GetDataSize(*from));
  }
  void FreeHandle(void*) final {}
  tvm::runtime::DeviceAPI* GetDeviceAPI(tvm::Device device, bool allow_missing) final {
    if (device.device_type == kDLCPU) return &device_;
    return tvm::runtime::DeviceAPI::Get(device, allow_missing);
  }
  bool IsLocalSession() const final { return false; }

 private:
  static void ReadAll(const char* bytes, size_t size) {
    static volatile char sink;
    for (size_t i = 0; i < size; i += 64) sink = sink ^ bytes[i];
    if (size) sink = sink ^ bytes[size - 1];
  }

  static void Touch(ffi::PackedArgs args) {
    for (int i = 0; i < args.size(); ++i) {
      if (auto text = args[i].as<ffi::String>()) ReadAll(text->data(), text->size());
      if (auto bytes = args[i].as<ffi::Bytes>()) ReadAll(bytes->data(), bytes->size());
      if (args[i].type_index() == ffi::TypeIndex::kTVMFFIDLTensorPtr) {
        auto* tensor = args[i].cast<DLTensor*>();
        ReadAll(reinterpret_cast<const char*>(tensor->shape),
                sizeof(int64_t) * static_cast<size_t>(tensor->ndim));
      }
    }
  }

  Device device_;
};

// A packet that TVM's client could send, of a random kind.
class Author {
 public:
  explicit Author(unsigned seed) : random_(seed) {}

  std::string Write() {
    const int code = static_cast<int>(Below(static_cast<int>(RPCCode::kDevGetCurrentStream) + 2));
    std::string body = Bytes<int32_t>(code);
    if (code == static_cast<int>(RPCCode::kInitServer)) body += Bytes<uint64_t>(3) + "0.8";
    if (code == static_cast<int>(RPCCode::kCallFunc)) body += Bytes<uint64_t>(1 + Below(64));
    if (code == static_cast<int>(RPCCode::kCopyToRemote))
      return Packet(body + Tensor() + Bytes<uint64_t>(4) + "abcd");
    if (code == static_cast<int>(RPCCode::kCopyFromRemote))
      return Packet(body + Tensor() + Bytes<uint64_t>(Below(64)));
    const int count = static_cast<int>(Below(5));
    body += Bytes<int32_t>(count);
    for (int i = 0; i < count; ++i) body += Argument();
    return Packet(body);
  }

  size_t Below(size_t n) { return random_() % n; }

 private:
  std::string Tensor() {
    const int dimensions = static_cast<int>(Below(4));
    std::string bytes = Bytes<uint64_t>(4096) + Device() + Bytes<int32_t>(dimensions) +
                        Bytes(DLDataType{kDLFloat, 32, 1});
    for (int i = 0; i < dimensions; ++i)
      bytes += Bytes<int64_t>(static_cast<int64_t>(1 + Below(8)));
    return bytes + Bytes<uint64_t>(0);
  }

  std::string Device() {
    return Bytes<int32_t>(Below(8) ? kDLCPU : static_cast<int32_t>(Below(200))) + Bytes<int32_t>(0);
  }

  std::string Argument() {
    const int32_t kinds[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 64, 65, 66, 68, 70, 73, 128};
    const int32_t kind = kinds[Below(std::size(kinds))];
    std::string bytes = Bytes(kind);
    if (kind == ffi::TypeIndex::kTVMFFIDevice) return bytes + Device();
    if (kind == ffi::TypeIndex::kTVMFFIDLTensorPtr) return bytes + Tensor();
    if (kind == 8 || kind == 9) return bytes + Bytes<uint64_t>(5) + "words";
    const bool plain = kind <= 5 || kind == ffi::TypeIndex::kTVMFFIFunction ||
                       kind == ffi::TypeIndex::kTVMFFIModule;
    if (plain) return kind ? bytes + Bytes<uint64_t>(Below(100)) : bytes;
    const uint32_t objects[] = {static_cast<uint32_t>(tvm::runtime::kRuntimeRPCObjectRef), 65, 66};
    const uint32_t object = objects[Below(std::size(objects))];
    return bytes + Bytes(object) +
           (object > 66 ? Bytes<uint64_t>(64) : Bytes<uint64_t>(5) + "words");
  }

  std::minstd_rand random_;
};

struct Whole {
  size_t begin, size;  // of a packet with its length
};

std::vector<Whole> PacketsOf(const uint8_t* data, size_t size) {
  std::vector<Whole> packets;
  for (size_t at = 1; at + 8 <= size;) {
    uint64_t nbytes;
    memcpy(&nbytes, data + at, sizeof(nbytes));
    if (nbytes > size - at - 8) break;
    packets.push_back({at, 8 + static_cast<size_t>(nbytes)});
    at += packets.back().size;
  }
  return packets;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  ffi::Function::SetGlobal(
      kSession, ffi::Function::FromTyped([] {
        return tvm::runtime::CreateRPCSessionModule(std::make_shared<Session>());
      }));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  try {
    auto channel = std::make_unique<farm::PacketChannel>(std::make_unique<Client>(data, size),
                                                         kMaxPacketBytes);
    tvm::runtime::RPCEndpoint::Create(std::move(channel), "fuzzing", "")->ServerLoop();
  } catch (const std::exception&) {
  }
  return 0;
}

// Most changes keep packets whole, so that they come further than to the first length.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  Author author(seed);
  if (size == 0 || author.Below(8) == 0) return LLVMFuzzerMutate(data, size, max_size);
  auto packets = PacketsOf(data, size);
  std::string out(reinterpret_cast<char*>(data), size), fresh;
  if (packets.empty() || author.Below(4) == 0) {
    const size_t at = packets.empty() ? 1 : packets[author.Below(packets.size())].begin;
    out.insert(at, author.Write());
  } else {
    const Whole packet = packets[author.Below(packets.size())];
    std::string body = out.substr(packet.begin + 8, packet.size - 8);
    const size_t room = body.size() + 64;
    const size_t before = body.size();
    body.resize(room);
    body.resize(before ? LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(body.data()), before, room)
                       : 4);
    out.replace(packet.begin, packet.size, Packet(body));
  }
  if (out.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  memcpy(data, out.data(), out.size());
  return out.size();
}
