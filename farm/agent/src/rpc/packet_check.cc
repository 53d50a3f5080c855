#include "rpc/packet_check.h"

#include <string.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/error.h>
#include <tvm/runtime/device_api.h>

#include <algorithm>

#include "base/error_code.h"
#include "base/io.h"
#include "minrpc/rpc_reference.h"
#include "rpc_session.h"

namespace farm {
namespace {

using tvm::runtime::RPCCode;

constexpr int32_t kMaxArguments = 1 << 16, kMaxTensorDimensions = 64, kMaxDevices = 64;
constexpr uint64_t kMaxTensorBits = uint64_t{1} << (sizeof(void*) == 8 ? 48 : 34);

// Sizes on the wire.
constexpr size_t kWordBytes = 8, kIntegerBytes = 4, kTensorBytes = 24;

void Sane(bool ok, const char* what) {
  if (!ok)
    TVM_FFI_THROW(RPCServerError) << Coded(error::kPacket, "a packet of the client has no sense: ")
                                  << what;
}

template <typename T>
T At(const char* field, size_t offset = 0) {
  T value;
  memcpy(&value, field + offset, sizeof(value));
  return value;
}

void CheckDevice(const char* field) {
  auto type = At<int32_t>(field);
  Sane(type > 0 && type < tvm::runtime::TVMDeviceExtType_End, "there is no such kind of device");
  auto number = At<int32_t>(field, 4);
  Sane(number >= 0 && number < kMaxDevices, "there is no device of this number");
}

// How many arguments TVM's server takes from a call of its own, without counting them.
int32_t ArgumentsOf(RPCCode code) {
  switch (code) {
    case RPCCode::kGetGlobalFunc:
    case RPCCode::kFreeHandle:
    case RPCCode::kDevSetDevice:
    case RPCCode::kDevCreateStream:
    case RPCCode::kDevGetCurrentStream:
      return 1;
    case RPCCode::kDevGetAttr:
    case RPCCode::kDevFreeData:
    case RPCCode::kDevStreamSync:
    case RPCCode::kDevAllocDataWithScope:
    case RPCCode::kDevFreeStream:
    case RPCCode::kDevSetStream:
      return 2;
    case RPCCode::kCopyAmongRemote:
      return 3;
    case RPCCode::kDevAllocData:
      return 4;
    default:
      return -1;  // any number: it looks itself, or the function does
  }
}

}  // namespace

void PacketCheck::Feed(const char* bytes, size_t size) {
  while (size) {
    if (field_ == Field::kRest) {
      const size_t n = static_cast<size_t>(std::min<uint64_t>(rest_, size));
      bytes += n;
      size -= n;
      rest_ -= n;
      if (rest_ == 0) Next();
      continue;
    }
    const size_t n = std::min(wanted_ - collected_.size(), size);
    collected_.append(bytes, n);
    bytes += n;
    size -= n;
    if (collected_.size() < wanted_) return;
    const std::string field = std::move(collected_);
    collected_.clear();
    OnField(field.data());
  }
}

void PacketCheck::Expect(Field field, size_t size) {
  Sane(size <= left_, "it ends early");
  left_ -= size;
  field_ = field;
  wanted_ = size;
}

void PacketCheck::Pass(uint64_t size) {
  Sane(size <= left_, "it ends early");
  left_ -= size;
  field_ = Field::kRest;
  rest_ = size;
  if (size == 0) Next();
}

void PacketCheck::Next() {
  if (!counted_) return Expect(Field::kCount, kIntegerBytes);
  if (arguments_ > 0) {
    --arguments_;
    return Expect(Field::kType, kIntegerBytes);
  }
  Sane(left_ == 0, "it goes on after its end");
  field_ = Field::kLength;
  wanted_ = kWordBytes;
}

void PacketCheck::OnField(const char* field) {
  switch (field_) {
    case Field::kLength:
      left_ = At<uint64_t>(field);
      Sane(left_ <= kMaxBytes, "its length");
      if (left_ > max_bytes_)
        TVM_FFI_THROW(RPCServerError) << Coded(error::kNoMemory, "out of memory: a message of ")
                                      << left_ << " bytes is too large";
      return left_ ? Expect(Field::kCode, kIntegerBytes) : Next();
    case Field::kCode:
      return OnCode(At<int32_t>(field));
    case Field::kCount:
      return OnCount(At<int32_t>(field));
    case Field::kType:
      return OnType(At<int32_t>(field));
    case Field::kObject:
      return OnObject(At<uint32_t>(field));
    case Field::kText:
      return Pass(At<uint64_t>(field));
    case Field::kHandle:
      Sane(At<uint64_t>(field), "a function or an object that is null");
      return Next();
    case Field::kDevice:
      CheckDevice(field);
      return Next();
    case Field::kTensor:
      return OnTensor(field);
    case Field::kShape:
      return OnShape(field);
    case Field::kCopy:
      return OnCopy(At<uint64_t>(field));
    case Field::kRest:
      return;  // Feed lets it pass
  }
}

void PacketCheck::OnCode(int32_t code) {
  code_ = static_cast<RPCCode>(code);
  const bool copy = code_ == RPCCode::kCopyFromRemote || code_ == RPCCode::kCopyToRemote ||
                    code_ == RPCCode::kShutdown;
  counted_ = copy;
  arguments_ = 0;
  if (code_ == RPCCode::kShutdown) return Next();
  if (copy) return Expect(Field::kTensor, kTensorBytes);
  if (code_ == RPCCode::kInitServer) return Expect(Field::kText, kWordBytes);
  if (code_ == RPCCode::kCallFunc) return Expect(Field::kHandle, kWordBytes);
  Sane(code_ >= RPCCode::kSyscallCodeStart && code_ <= RPCCode::kDevGetCurrentStream,
       "it is no request");
  Next();
}

void PacketCheck::OnCount(int32_t count) {
  Sane(count >= 0 && count <= kMaxArguments, "the number of its arguments");
  const int32_t wanted = ArgumentsOf(code_);
  Sane(wanted < 0 || count == wanted, "the number of its arguments is not that of the call");
  counted_ = true;
  arguments_ = count;
  Next();
}

void PacketCheck::OnType(int32_t type) {
  switch (type) {
    case kTVMFFINone:
      return Next();
    case kTVMFFIInt:
    case kTVMFFIBool:
    case kTVMFFIFloat:
    case kTVMFFIOpaquePtr:
    case kTVMFFIDataType:
      return Pass(kWordBytes);
    case kTVMFFIDevice:
      return Expect(Field::kDevice, kWordBytes);
    case kTVMFFIDLTensorPtr:
      return Expect(Field::kTensor, kTensorBytes);
    case kTVMFFIRawStr:
    case kTVMFFIByteArrayPtr:
      return Expect(Field::kText, kWordBytes);
    case kTVMFFIFunction:
    case kTVMFFIModule:
      return Expect(Field::kHandle, kWordBytes);
    default:
      Sane(type >= kTVMFFIStaticObjectBegin || type == kTVMFFISmallStr || type == kTVMFFISmallBytes,
           "an argument of an unknown type");
      return Expect(Field::kObject, kIntegerBytes);
  }
}

void PacketCheck::OnObject(uint32_t type) {
  if (type == static_cast<uint32_t>(tvm::runtime::kRuntimeRPCObjectRef))
    return Expect(Field::kHandle, kWordBytes);
  Sane(type == kTVMFFIStr || type == kTVMFFIBytes, "an object of an unknown type");
  Expect(Field::kText, kWordBytes);
}

// Address, device, number of dimensions, data type.
void PacketCheck::OnTensor(const char* field) {
  CheckDevice(field + 8);
  auto dimensions = At<int32_t>(field, 16);
  Sane(dimensions >= 0 && dimensions <= kMaxTensorDimensions, "the number of dimensions");
  element_bits_ = uint64_t{At<uint8_t>(field, 21)} * At<uint16_t>(field, 22);
  Expect(Field::kShape, static_cast<size_t>(dimensions) * kWordBytes + kWordBytes);
}

// The dimensions, and the offset of the first byte.
void PacketCheck::OnShape(const char* field) {
  uint64_t bits = element_bits_;
  const size_t offset_at = wanted_ - kWordBytes;
  for (size_t at = 0; at < offset_at; at += kWordBytes) {
    auto extent = At<uint64_t>(field, at);
    Sane(bits == 0 || extent <= kMaxTensorBits / bits, "the size of a tensor");
    bits *= extent;
  }
  tensor_bytes_ = (bits + 7) / 8;
  auto offset = At<uint64_t>(field, offset_at);
  Sane(offset <= tensor_bytes_, "a tensor begins behind its end");
  tensor_bytes_ -= offset;
  if (code_ == RPCCode::kCopyFromRemote || code_ == RPCCode::kCopyToRemote)
    return Expect(Field::kCopy, kWordBytes);
  Next();
}

void PacketCheck::OnCopy(uint64_t nbytes) {
  Sane(nbytes <= tensor_bytes_ && nbytes <= max_bytes_, "it copies more than the tensor has");
  code_ == RPCCode::kCopyToRemote ? Pass(nbytes) : Next();
}

size_t PacketChannel::Send(const void* data, size_t size) try {
  return below_->Send(data, size);
} catch (const IoError& e) {
  TVM_FFI_THROW(RPCError) << e.what();
  return 0;
}

size_t PacketChannel::Recv(void* data, size_t size) try {
  const size_t n = below_->Recv(data, size);
  check_.Feed(static_cast<const char*>(data), n);
  return n;
} catch (const IoError& e) {
  TVM_FFI_THROW(RPCError) << e.what();
  return 0;
}

}  // namespace farm
