// The codes of errors: what a program reads, where the text after the code is for a person. The
// host decides by the code alone what an error means and what to do
// (farm/transports/agent/errors.py). A code keeps its name and its meaning for ever; texts may
// change.
#pragma once

#include <string>

namespace farm {

class ErrorCode {
 public:
  constexpr explicit ErrorCode(const char* name) : name_(name) {}
  constexpr const char* name() const { return name_; }

 private:
  const char* name_;
};

namespace error {

constexpr ErrorCode kNoMemory{
    "E_NO_MEMORY"};  // the memory of the session, the device or the GPU is used up
constexpr ErrorCode kDiskFull{"E_DISK_FULL"};  // the device's disk
constexpr ErrorCode kFile{
    "E_FILE"};  // the system refuses a file, a folder or a process, for any other reason
constexpr ErrorCode kName{
    "E_NAME"};  // the name of a file leads out of its folder, or cannot be one
constexpr ErrorCode kWorkFull{"E_WORK_FULL"};    // the session's work directory, by --max-work
constexpr ErrorCode kStoreFull{"E_STORE_FULL"};  // the store, by --store-budget
constexpr ErrorCode kStoreBusy{"E_STORE_BUSY"};  // another session holds the store
constexpr ErrorCode kStoreLost{"E_STORE_LOST"};  // a file or a release is missing or damaged
constexpr ErrorCode kUpload{"E_UPLOAD"};      // what was sent is incomplete, or in the wrong order
constexpr ErrorCode kDigest{"E_DIGEST"};      // what was sent has another digest
constexpr ErrorCode kManifest{"E_MANIFEST"};  // the description of a deployment is malformed
constexpr ErrorCode kNotDeployed{"E_NOT_DEPLOYED"};  // no deployment has that name
constexpr ErrorCode kNoRelease{"E_NO_RELEASE"};      // the deployment has no such release
constexpr ErrorCode kLibrary{"E_LIBRARY"};  // the library is damaged, or for another machine
constexpr ErrorCode kPacket{"E_PACKET"};    // a packet of the client is malformed
constexpr ErrorCode kSilent{"E_SILENT"};    // the client has the session and sends nothing
constexpr ErrorCode kThreads{"E_THREADS"};  // these threads or cores cannot be used
constexpr ErrorCode kSamples{
    "E_SAMPLES"};  // the samples do not fit the model, or their answers into memory
constexpr ErrorCode kProfile{"E_PROFILE"};  // too many calls to time each
constexpr ErrorCode kGpu{"E_GPU"};          // the GPU, or a kernel on it, failed
constexpr ErrorCode kNoGpu{"E_NO_GPU"};     // the GPU cannot be used by this session
constexpr ErrorCode kArray{"E_ARRAY"};      // a .npy file is damaged, or does not fit the model
constexpr ErrorCode kLab{"E_LAB"};          // the lab has ended the session, with its lease
constexpr ErrorCode kAddress{"E_ADDRESS"};  // the address to listen on

}  // namespace error

// "E_NO_MEMORY: TEXT"
inline std::string Coded(ErrorCode code, const std::string& text) {
  return code.name() + (": " + text);
}

}  // namespace farm
