// The inner loop of SHA-256, by the processor's own instructions where it has them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace farm {

constexpr size_t kShaBlockBytes = 64;

// Takes `count` blocks of data into the eight words of the state.
using ShaBlocks = void (*)(uint32_t* state, const unsigned char* data, size_t count);

// The fastest that this processor runs.
ShaBlocks FastestShaBlocks();

}  // namespace farm
