#include "control.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device.h"
#include "fake_cuda.h"

namespace fake_cuda {
namespace {

struct Table {
  Settings settings;
  const std::map<std::string, Setting*> by_name{
      {"DEVICES", &settings.devices},
      {"VERSION", &settings.version},
      {"MEMORY", &settings.memory},
      {"DELAY", &settings.delay},
      {"QUEUES", &settings.queues},
      {"ORDER", &settings.order},
      {"CAPABILITY", &settings.capability},
      {"NVRTC", &settings.nvrtc},
      {"ARCHITECTURE", &settings.architecture},
      {"LOST", &settings.lost},
      {"IGNORE_EVENT_SYNCHRONIZE", &settings.ignore_event_synchronize},
      {"IGNORE_STREAM_SYNCHRONIZE", &settings.ignore_stream_synchronize},
      {"IGNORE_BARRIERS", &settings.ignore_barriers},
  };

  Table() {
    for (const auto& [name, setting] : by_name) {
      const char* text = std::getenv(("FAKE_CUDA_" + name).c_str());
      if (!text) continue;
      char* end = nullptr;
      *setting = std::strtol(text, &end, 10);
      if (end == text || *end) die("FAKE_CUDA_" + name + " is '" + text + "': expected a number");
    }
  }
};
// This and what follows is never destroyed, as streams may run until the process is gone.
Table& table() {
  static Table& the = *new Table;
  return the;
}

struct Fault {
  std::string point;
  int device = -1;
  long first = 1;
  bool again = false;
  cudaError_t error = cudaErrorUnknown;
  long met = 0;
};

cudaError_t usual_error(const std::string& point) {
  if (point == "cudaMalloc" || point == "cuMemAlloc" || point == "cuMemHostAlloc") {
    return cudaErrorMemoryAllocation;
  }
  if (point == "kernel" || point == "copy" || point == "memset") return cudaErrorIllegalAddress;
  if (point == "cudaLaunchKernel" || point == "cuLaunchKernel")
    return cudaErrorLaunchOutOfResources;
  if (point == "context") return cudaErrorDevicesUnavailable;
  return cudaErrorUnknown;
}

Fault parse(const std::string& text) {
  Fault fault;
  fault.point = text.substr(0, text.find_first_of("@#="));
  const char* at = text.c_str() + fault.point.size();
  const auto number = [&](char sign, long otherwise) {
    if (*at != sign) return otherwise;
    char* end = nullptr;
    const long value = std::strtol(at + 1, &end, 10);
    if (end == at + 1) die("'" + text + "' is no fault");
    at = end;
    return value;
  };
  fault.device = static_cast<int>(number('@', -1));
  fault.first = number('#', 1);
  fault.again = *at == '+';
  if (fault.again) ++at;
  fault.error = static_cast<cudaError_t>(number('=', usual_error(fault.point)));
  if (*at) die("'" + text + "' is no fault");
  return fault;
}

/// Faults that are ordered, and calls that were made.
struct Books {
  std::mutex mutex;
  std::vector<Fault> faults;
  std::atomic<bool> any_faults{false};
  long struck = 0;
  std::map<std::string, std::map<int, long>> calls;
  // Not thread_local: MXNet calls CUDA from exit handlers, after the main thread's variables are
  // gone.
  std::map<std::thread::id, std::map<std::string, long>> calls_of_threads;
};
Books& books() {
  static Books& the = *new Books;
  return the;
}

}  // namespace

void die(const std::string& why) {
  std::fprintf(stderr, "fake CUDA: %s\n", why.c_str());
  std::abort();
}

Settings& settings() { return table().settings; }

void count(const std::string& call, int device) {
  const std::lock_guard<std::mutex> lock(books().mutex);
  ++books().calls[call][device];
  ++books().calls_of_threads[std::this_thread::get_id()][call];
}

cudaError_t fault_at(const char* point, int device) {
  if (!books().any_faults.load(std::memory_order_relaxed)) return cudaSuccess;
  const std::lock_guard<std::mutex> lock(books().mutex);
  for (Fault& fault : books().faults) {
    if (fault.point != point || (fault.device >= 0 && fault.device != device)) continue;
    ++fault.met;
    if (fault.met != fault.first && !(fault.again && fault.met > fault.first)) continue;
    ++books().struck;
    return fault.error;
  }
  return cudaSuccess;
}

bool is_sticky(cudaError_t error) {
  return error == cudaErrorECCUncorrectable || error == cudaErrorIllegalAddress ||
         error == cudaErrorLaunchFailure;
}

}  // namespace fake_cuda

using fake_cuda::books;
using fake_cuda::table;

extern "C" {

long fakeCudaSet(const char* name, long value) {
  const auto found = table().by_name.find(name);
  if (found == table().by_name.end()) fake_cuda::die(std::string("no setting is called ") + name);
  return found->second->exchange(value);
}

void fakeCudaInject(const char* faults) {
  std::istringstream parts(faults);
  const std::lock_guard<std::mutex> lock(books().mutex);
  for (std::string part; std::getline(parts, part, ';');) {
    books().faults.push_back(fake_cuda::parse(part));
  }
  books().any_faults = true;
}

long fakeCudaClearFaults() {
  const std::lock_guard<std::mutex> lock(books().mutex);
  books().faults.clear();
  books().any_faults = false;
  for (int i = 0; fake_cuda::exists(i); ++i) fake_cuda::device(i).mend();
  return std::exchange(books().struck, 0);
}

long fakeCudaCount(const char* call, int device) {
  const std::lock_guard<std::mutex> lock(books().mutex);
  long sum = 0;
  for (const auto& [on, number] : books().calls[call]) {
    if (device < 0 || on == device) sum += number;
  }
  return sum;
}

long fakeCudaCountHere(const char* call) {
  const std::lock_guard<std::mutex> lock(books().mutex);
  return books().calls_of_threads[std::this_thread::get_id()][call];
}

int fakeCudaHasContext(int ordinal) { return fake_cuda::device(ordinal).has_context(); }

}  // extern "C"
