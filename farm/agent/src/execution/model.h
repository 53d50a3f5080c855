// A model that is loaded in this process: a library, and its parameters if they lie apart.
#pragma once
#include <tvm/ffi/extra/module.h>
#include <tvm/runtime/tensor.h>

#include <string>
#include <vector>

namespace farm {

class Model {
 public:
  // `folder` holds the files of a deployment. A library with code for a GPU runs on the one of this
  // number. TVM's errors when they cannot be loaded.
  Model(const std::string& folder, bool has_parameters, int gpu);

  // The outputs for these inputs, flat, in the model's order.
  std::vector<tvm::runtime::Tensor> Run(const std::vector<tvm::runtime::Tensor>& inputs);

 private:
  explicit Model(const tvm::ffi::Module& library);
  tvm::ffi::Function Get(const char* name) const;
  void Collect(std::vector<int64_t> index, std::vector<tvm::runtime::Tensor>* outputs);

  tvm::ffi::Module library_, machine_;
  std::vector<tvm::ffi::Any> parameters_;
};

}  // namespace farm
