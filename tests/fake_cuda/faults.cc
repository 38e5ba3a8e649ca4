#include "faults.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <regex>
#include <sstream>
#include <utility>
#include <vector>

#include "counters.h"
#include "die.h"

namespace fake_cuda {
namespace {

struct Fault {
  std::string point;
  int device = -1;
  long first = 1;
  bool again = false;
  cudaError_t error = cudaErrorUnknown;
  long met = 0;
};

cudaError_t usual_error(const std::string& point) {
  if (point == "cudaMalloc" || point == "cudaHostAlloc") return cudaErrorMemoryAllocation;
  if (point == "kernel" || point == "copy" || point == "memset") return cudaErrorIllegalAddress;
  if (point == "cudaLaunchKernel") return cudaErrorLaunchOutOfResources;
  if (point == "context") return cudaErrorDevicesUnavailable;
  return cudaErrorUnknown;
}

Fault parse(const std::string& text) {
  static const std::regex form(R"(\s*(\w+)(?:@(\d+))?(?:#(\d+)(\+)?)?(?:=(\d+))?\s*)");
  std::smatch match;
  if (!std::regex_match(text, match, form)) die("'" + text + "' is no fault");
  Fault fault;
  fault.point = match[1];
  if (match[2].matched) fault.device = std::stoi(match[2]);
  if (match[3].matched) fault.first = std::stol(match[3]);
  fault.again = match[4].matched;
  fault.error =
      match[5].matched ? static_cast<cudaError_t>(std::stoi(match[5])) : usual_error(fault.point);
  return fault;
}

class Faults {
 public:
  Faults() {
    if (const char* text = std::getenv("FAKE_CUDA_FAULTS")) add(text);
  }

  void add(const std::string& text) {
    std::istringstream parts(text);
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::string part; std::getline(parts, part, ';');) faults_.push_back(parse(part));
  }
  long clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    faults_.clear();
    return std::exchange(struck_, 0);
  }
  cudaError_t at(const char* point, int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Fault& fault : faults_) {
      if (fault.point != point || (fault.device >= 0 && fault.device != device)) continue;
      ++fault.met;
      if (fault.met != fault.first && !(fault.again && fault.met > fault.first)) continue;
      ++struck_;
      count("fault", device);
      return fault.error;
    }
    return cudaSuccess;
  }

 private:
  std::mutex mutex_;
  std::vector<Fault> faults_;
  long struck_ = 0;
};

Faults& faults() {
  static Faults& all = *new Faults;
  return all;
}

}  // namespace

void inject(const std::string& text) { faults().add(text); }
long clear_faults() { return faults().clear(); }
cudaError_t fault_at(const char* point, int device) { return faults().at(point, device); }

bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
      return true;
    default:
      return false;
  }
}

}  // namespace fake_cuda
