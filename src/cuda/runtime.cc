#include "cuda/runtime.h"

#include <array>
#include <atomic>
#include <sstream>

#include "common/error.h"
#include "cuda/driver.h"

namespace gluon_syncbn::cuda {
namespace {

int device_of(int ordinal) {
  int device = 0;
  check(driver().device(&device, ordinal), "cuDeviceGet", ordinal);
  return device;
}

/// Initializes the driver. To be called before it is asked for GPUs.
int count_devices(int* count) {
  const int result = driver().init(0);
  return result == kSuccess ? driver().device_count(count) : result;
}

std::string name_of(int ordinal) {
  std::array<char, 256> name{};
  check(driver().device_name(name.data(), static_cast<int>(name.size()), device_of(ordinal)),
        "cuDeviceGetName", ordinal);
  return name.data();
}

/// The primary context of a GPU, which this library shares with MXNet's runtime. It is retained
/// once and never released, because threads may work in it until the process ends.
CUctx_st* context_of(int ordinal) {
  static std::array<std::atomic<CUctx_st*>, kMostGpus> contexts{};
  auto& context = contexts.at(static_cast<std::size_t>(ordinal));
  if (CUctx_st* known = context) return known;
  CUctx_st* retained = nullptr;
  check(driver().retain_context(&retained, device_of(ordinal)), "cuDevicePrimaryCtxRetain",
        ordinal);
  return context = retained;
}

/// For destructors. At the end of the process the driver may have released everything before.
template <class Release>
void release_on(int ordinal, const Release& release) noexcept {
  try {
    const OnDevice on_device(ordinal);
    release();
  } catch (const Error&) {
  }
}

/// Returns "; ... of ... bytes are free" of the selected GPU, for a message.
std::string free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  if (driver().memory(&free, &total) != kSuccess) return "";
  return "; " + std::to_string(free) + " of " + std::to_string(total) + " bytes are free";
}

/// The context of the calling thread; null if it has none.
CUctx_st* current_context() {
  CUctx_st* context = nullptr;
  driver().context(&context);
  return context;
}

Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }

}  // namespace

OnDevice::OnDevice(int ordinal) : before_(current_context()) {
  CUctx_st* const context = context_of(ordinal);
  if (before_ == context) return;
  check(driver().set_context(context), "cuCtxSetCurrent", ordinal);
  changed_ = true;
}
OnDevice::~OnDevice() {
  if (changed_) driver().set_context(before_);
}

int device_count() {
  int count = 0;
  return driver().missing.empty() && count_devices(&count) == kSuccess ? count : 0;
}

int compute_capability(int ordinal) {
  const int device = device_of(ordinal);
  int major = 0;
  int minor = 0;
  check(driver().attribute(&major, kComputeCapabilityMajor, device), "cuDeviceGetAttribute",
        ordinal);
  check(driver().attribute(&minor, kComputeCapabilityMinor, device), "cuDeviceGetAttribute",
        ordinal);
  return 10 * major + minor;
}

std::string describe_devices() {
  if (!driver().missing.empty()) return "none: no NVIDIA driver (" + driver().missing + ")";
  int count = 0;
  const int status = count_devices(&count);
  if (status != kSuccess) {
    return "none: " + text_of(status) +
           (status == kNotInitialized
                ? "; CUDA serves no process that was forked after it had been called"
                : "");
  }
  std::ostringstream text;
  for (int i = 0; i < count; ++i) {
    text << (i ? ", " : "");
    try {
      text << name_of(i) << " (sm_" << compute_capability(i) << ")";
    } catch (const Error& error) {
      text << "one that does not answer (" << error.what() << ")";
    }
  }
  return count ? text.str() : "none";
}

Event::Event(int ordinal) : ordinal_(ordinal) {
  const OnDevice on_device(ordinal);
  check(driver().create_event(&event_, kDisableTiming), "cuEventCreate", ordinal);
}
Event::~Event() {
  release_on(ordinal_, [this] { driver().destroy_event(event_); });
}

void Event::record(Stream* stream) {
  const OnDevice on_device(ordinal_);
  check(driver().record(event_, stream->handle()), "cuEventRecord", ordinal_);
}
bool Event::is_reached() const {
  const int status = driver().query(event_);
  if (status == kNotReady) return false;
  check(status, "earlier work", ordinal_);
  return true;
}

Stream::Stream(int ordinal) : ordinal_(ordinal) {
  const OnDevice on_device(ordinal);
  int least = 0;
  int greatest = 0;
  check(driver().stream_priorities(&least, &greatest), "cuCtxGetStreamPriorityRange", ordinal);
  check(driver().create_stream(&stream_, kNonBlocking, greatest), "cuStreamCreateWithPriority",
        ordinal);
}
Stream::~Stream() {
  release_on(ordinal_, [this] { driver().destroy_stream(stream_); });
}

void Stream::synchronize() {
  const OnDevice on_device(ordinal_);
  check(driver().synchronize(stream_), "earlier work", ordinal_);
}
void Stream::fill(void* begin, int byte, std::size_t bytes) {
  if (bytes == 0) return;
  const OnDevice on_device(ordinal_);
  check(driver().fill(address_of(begin), static_cast<unsigned char>(byte), bytes, stream_),
        "cuMemsetD8Async", ordinal_);
}
void Stream::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const OnDevice on_device(ordinal_);
  check(driver().copy(address_of(to), address_of(from), bytes, stream_), "cuMemcpyAsync", ordinal_);
}

Memory::Memory(Place place, int ordinal, std::size_t bytes)
    : place_(place), ordinal_(ordinal), bytes_(bytes) {
  const OnDevice on_device(ordinal);
  // All 64-bit systems have unified addressing, so one address serves all GPUs.
  Address address = 0;
  const int status = place == Place::kDevice
                         ? driver().allocate(&address, bytes)
                         : driver().allocate_host(&data_, bytes, kPortable | kDeviceMap);
  if (place == Place::kDevice) data_ = reinterpret_cast<void*>(address);
  if (status == kSuccess) return;
  const std::string what = "allocation of " + std::to_string(bytes) + " bytes" +
                           (place == Place::kDevice ? "" : " of pinned host memory");
  try {
    check(status, what, ordinal);
  } catch (const Error& error) {
    if (status != kOutOfMemory) throw;
    throw OutOfMemory(error.what() + (place == Place::kDevice ? free_bytes() : ""));
  }
}
Memory::~Memory() {
  if (lent_) return;
  release_on(ordinal_, [this] {
    place_ == Place::kDevice ? driver().free(address_of(data_)) : driver().free_host(data_);
  });
}

}  // namespace gluon_syncbn::cuda
