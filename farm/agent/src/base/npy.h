// Tensors as .npy files: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once
#include <tvm/runtime/tensor.h>

#include <string>

#include "store/manifest.h"

namespace farm {

// The tensor in a file of version 1 to 3, which must have the shape and dtype of `spec`. IoError,
// with the words of who made the file, when it has not.
tvm::runtime::Tensor ReadNpy(const std::string& path, const TensorSpec& spec);

// IoError when the disk is full, or for a dtype that numpy does not have.
void WriteNpy(const std::string& path, const tvm::runtime::Tensor& tensor);

// "float32", "(1, 3, 224, 224)", "(5,)"
std::string DtypeName(const DLDataType& dtype);
std::string ShapeText(const int64_t* shape, size_t count);

}  // namespace farm
