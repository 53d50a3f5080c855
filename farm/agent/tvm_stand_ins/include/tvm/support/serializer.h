// Own stand-in for a header that the apache-tvm wheel leaves out.
// Wire format: little-endian scalars as they are, containers as u64 count + elements.
#pragma once
#include <dlpack/dlpack.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian devices only");
namespace tvm {
namespace support {
template <typename T>
struct Serializer<T, std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>>> {
  static constexpr bool enabled = true;
  static void Write(Stream* s, const T& v) { s->Write(static_cast<const void*>(&v), sizeof(T)); }
  static bool Read(Stream* s, T* v) {
    return s->Read(static_cast<void*>(v), sizeof(T)) == sizeof(T);
  }
};
// byte strings
template <typename T>
struct BytesSerializer {
  static constexpr bool enabled = true;
  static constexpr uint64_t kPieceBytes = 1 << 20;
  static void Write(Stream* s, const T& v) {
    s->Write(static_cast<uint64_t>(v.size()));
    s->Write(static_cast<const void*>(v.data()), v.size());
  }
  static bool Read(Stream* s, T* v) {
    uint64_t n;
    if (!s->Read(&n)) return false;
    // Piece by piece: a count that lies must not make us allocate what the stream cannot fill.
    std::string buf;
    while (buf.size() < n) {
      size_t start = buf.size(), size = std::min<uint64_t>(n - start, kPieceBytes);
      buf.resize(start + size);
      if (s->Read(static_cast<void*>(&buf[start]), size) != size) return false;
    }
    *v = T(std::move(buf));
    return true;
  }
};
template <>
struct Serializer<std::string> : BytesSerializer<std::string> {};
template <>
struct Serializer<ffi::String> : BytesSerializer<ffi::String> {};
template <>
struct Serializer<ffi::Bytes> : BytesSerializer<ffi::Bytes> {};
// sequences
template <typename Seq, typename T>
struct SeqSerializer {
  static constexpr bool enabled = true;
  static void Write(Stream* s, const Seq& v) {
    s->Write(static_cast<uint64_t>(v.size()));
    for (size_t i = 0; i < v.size(); ++i) s->template Write<T>(v[i]);
  }
  static bool Read(Stream* s, Seq* v) {
    uint64_t n;
    if (!s->Read(&n)) return false;
    *v = Seq();
    for (uint64_t i = 0; i < n; ++i) {
      T item;
      if (!s->Read(&item)) return false;
      v->push_back(std::move(item));
    }
    return true;
  }
};
template <typename T>
struct Serializer<std::vector<T>> : SeqSerializer<std::vector<T>, T> {};
template <typename T>
struct Serializer<ffi::Array<T>> : SeqSerializer<ffi::Array<T>, T> {};
template <typename A, typename B>
struct Serializer<std::pair<A, B>> {
  static constexpr bool enabled = true;
  static void Write(Stream* s, const std::pair<A, B>& v) {
    s->Write(v.first);
    s->Write(v.second);
  }
  static bool Read(Stream* s, std::pair<A, B>* v) {
    return s->Read(&v->first) && s->Read(&v->second);
  }
};
// maps
template <typename M, typename K, typename V>
struct MapSerializer {
  static constexpr bool enabled = true;
  static void Write(Stream* s, const M& m) {
    s->Write(static_cast<uint64_t>(m.size()));
    for (const auto& kv : m) {
      s->template Write<K>(kv.first);
      s->template Write<V>(kv.second);
    }
  }
  static bool Read(Stream* s, M* m) {
    uint64_t n;
    if (!s->Read(&n)) return false;
    *m = M();
    for (uint64_t i = 0; i < n; ++i) {
      K k;
      V v;
      if (!s->Read(&k) || !s->Read(&v)) return false;
      if constexpr (std::is_same_v<M, std::unordered_map<K, V>>) {
        m->emplace(std::move(k), std::move(v));
      } else {
        m->Set(std::move(k), std::move(v));
      }
    }
    return true;
  }
};
template <typename K, typename V>
struct Serializer<std::unordered_map<K, V>> : MapSerializer<std::unordered_map<K, V>, K, V> {};
template <typename K, typename V>
struct Serializer<ffi::Map<K, V>> : MapSerializer<ffi::Map<K, V>, K, V> {};
// plain structs
template <>
struct Serializer<DLDataType> {
  static constexpr bool enabled = true;
  static void Write(Stream* s, const DLDataType& t) {
    s->Write(t.code);
    s->Write(t.bits);
    s->Write(t.lanes);
  }
  static bool Read(Stream* s, DLDataType* t) {
    return s->Read(&t->code) && s->Read(&t->bits) && s->Read(&t->lanes);
  }
};
template <>
struct Serializer<DLDevice> {
  static constexpr bool enabled = true;
  static void Write(Stream* s, const DLDevice& d) {
    s->Write(static_cast<int32_t>(d.device_type));
    s->Write(static_cast<int32_t>(d.device_id));
  }
  static bool Read(Stream* s, DLDevice* d) {
    int32_t type = 0;
    if (!s->Read(&type) || !s->Read(&d->device_id)) return false;
    d->device_type = static_cast<DLDeviceType>(type);
    return true;
  }
};
}  // namespace support
}  // namespace tvm
