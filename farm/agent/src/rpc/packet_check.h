// Checks a client's packets before TVM's runtime reads them: it takes lengths, counts and shapes as
// they come.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "minrpc/rpc_reference.h"
#include "rpc_channel.h"

namespace farm {

// Follows the bytes of packets as they pass. The format: RPCReference in TVM's
// minrpc/rpc_reference.h.
class PacketCheck {
 public:
  // TVM takes lengths and counts as int: a larger packet is not for it.
  static constexpr uint64_t kMaxBytes = std::numeric_limits<int32_t>::max();

  // `max_bytes` is what a packet may have, an answer's copy of a tensor included.
  explicit PacketCheck(uint64_t max_bytes = kMaxBytes) : max_bytes_(max_bytes) {}

  // Throws an error of TVM's when these bytes do not go on with what TVM's server can read.
  void Feed(const char* bytes, size_t size);

 private:
  // What comes next. All but kRest is collected whole before it is looked at.
  enum class Field {
    kLength,
    kCode,
    kCount,
    kType,
    kObject,
    kText,
    kHandle,
    kDevice,
    kTensor,
    kShape,
    kCopy,
    kRest
  };

  void OnField(const char* field);
  void OnCode(int32_t code);
  void OnCount(int32_t count);
  void OnType(int32_t type);
  void OnObject(uint32_t type);
  void OnTensor(const char* field);
  void OnShape(const char* field);
  void OnCopy(uint64_t nbytes);
  void Expect(Field field, size_t size);
  // Lets bytes pass that mean nothing to us.
  void Pass(uint64_t size);
  // A part of the packet is over: on to the number of its arguments, the next argument, or the next
  // packet.
  void Next();

  const uint64_t max_bytes_;
  Field field_ = Field::kLength;
  std::string collected_;
  size_t wanted_ = sizeof(uint64_t);  // bytes of the field
  uint64_t left_ = 0;                 // bytes of the packet behind the field
  uint64_t rest_ = 0;                 // bytes that are to pass
  tvm::runtime::RPCCode code_{};
  bool counted_ = true;  // the number of arguments has come, or there is none
  int32_t arguments_ = 0;
  uint64_t element_bits_ = 0, tensor_bytes_ = 0;
};

// A channel whose packets are checked. What fails in the one below becomes an error of TVM's, which
// its endpoint expects even while it is being destroyed.
class PacketChannel final : public tvm::runtime::RPCChannel {
 public:
  explicit PacketChannel(std::unique_ptr<tvm::runtime::RPCChannel> below,
                         uint64_t max_bytes = PacketCheck::kMaxBytes)
      : below_(std::move(below)), check_(max_bytes) {}
  size_t Send(const void* data, size_t size) final;
  size_t Recv(void* data, size_t size) final;

 private:
  std::unique_ptr<tvm::runtime::RPCChannel> below_;
  PacketCheck check_;
};

}  // namespace farm
