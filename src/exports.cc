// The functions that gluon_syncbn/library.py calls. No exception may pass into the C code that
// calls them. A function that can fail only for lack of memory is noexcept, and then ends the
// process.

#include <cstddef>
#include <exception>
#include <string>

#include "common/code_cache.h"
#include "common/error.h"
#include "common/report.h"
#include "common/watchdog.h"
#include "cpu/simd/isa.h"
#include "cuda/nvrtc.h"
#include "cuda/runtime.h"
#include "distributed/process_rounds.h"
#include "horovod/process_sets.h"
#include "mxnet/repairs/cpu_context_check.h"
#include "mxnet/repairs/cpu_workspaces.h"
#include "mxnet/repairs/error_queue.h"
#include "mxnet/repairs/fork.h"
#include "mxnet/repairs/openblas.h"
#include "mxnet/wait_for_all.h"
#include "operator/attributes.h"
#include "operator/callbacks.h"
#include "operator/operator.h"
#include "sync/barrier.h"
#include "sync/failed_steps.h"
#include "sync/met_rounds.h"

#define GLUON_SYNCBN_EXPORT extern "C" __attribute__((visibility("default")))

#ifndef GLUON_SYNCBN_VERSION
#error "the build defines GLUON_SYNCBN_VERSION"
#endif

using namespace gluon_syncbn;

/// Registers the operator with the libmxnet that is loaded from the file `libmxnet`. Calls
/// `first_use` with the first node. Returns nullptr, or an error message.
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_register(const char* libmxnet,
                                                      mxnet::CpuContextCheck check,
                                                      mxnet::LiveArrays live_arrays,
                                                      op::FirstUse first_use) {
  return error_of([&] {
    cpu::isa();  // throws here, and not in the first pass
    mxnet::load_api(libmxnet);
    mxnet::set_cpu_context_check(check);
    op::register_operator(first_use);
    mxnet::survive_forks(live_arrays);
  });
}

/// See use_openblas(). Returns nullptr, or the reason why MXNet keeps its library.
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_use_openblas(const char* libmxnet,
                                                          const char* openblas) {
  return error_of([&] {
    mxnet::use_openblas(libmxnet, openblas);
    if (openblas) mxnet::run_before_later_fork_handlers();
  });
}

/// See describe_blas(). The text is valid until the next call.
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_blas() {
  thread_local std::string blas;
  blas = mxnet::describe_blas();
  return blas.c_str();
}

/// The form of MXNet's engine, or the reason why it is unknown. The text is valid until the next
/// call.
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_engine() {
  thread_local std::string engine;
  const char* error = error_of([] {
    engine =
        "calls functions with " + std::to_string(mxnet::count_engine_arguments()) + " arguments";
  });
  return error ? error : engine.c_str();
}

GLUON_SYNCBN_EXPORT void gluon_syncbn_set_timeout(double seconds) noexcept {
  Watchdog::instance().set_timeout(seconds);
}

GLUON_SYNCBN_EXPORT void gluon_syncbn_set_ask_python(AskPython function) noexcept {
  set_ask_python(function);
}

GLUON_SYNCBN_EXPORT double gluon_syncbn_timeout() noexcept {
  return Watchdog::instance().timeout();
}

/// Waits for all operations and ends waits that are in vain. The next step then repeats no error.
/// Returns nullptr, or the first error, if it is not of a layer of this library. If other
/// processes take part, waits for the passes of this library alone, and reports what it left.
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_drop_step(bool others_take_part) {
  return error_of([&] {
    const Ending dropped{"gluon_syncbn.drop_step() dropped it", Missing::kAnything,
                         Absent::kHaveLeftItOut};
    std::string error;
    if (!others_take_part) {
      error = mxnet::wait_for_all(dropped);
    } else if (!mxnet::wait_for_passes(dropped)) {
      report("warning: gluon_syncbn.drop_step() has not waited for threads that still compute");
    }
    if (const std::string left = unanswered_messages(); !left.empty()) report(left);
    FailedSteps::instance().drop();
    const bool names_layer = error.find(op::kLayer) != std::string::npos;
    if (!error.empty() && !names_layer) throw Error(error);
  });
}

/// See add_process_set(). `allgather` is horovod_mxnet_allgather_async. Returns nullptr, or an
/// error message.
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_add_process_set(horovod::Allgather allgather,
                                                             int process_set, int rank, int size,
                                                             const char* ranks) {
  return error_of([&] { horovod::add_process_set({allgather, process_set, rank, size, ranks}); });
}

/// See set_frozen().
GLUON_SYNCBN_EXPORT void gluon_syncbn_set_frozen(const char* key, bool is_frozen) {
  op::set_frozen(key, is_frozen);
}

/// See leave_processes(). Returns the error of later exchanges.
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_leave_processes() noexcept {
  horovod::leave_processes();
  return horovod::kHasLeft;
}

/// Must be called at the end of the process. Every round that waits for devices fails with the
/// returned message, and so does every later one.
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_retire() noexcept {
  mxnet::forget_live_arrays();
  Watchdog::instance().retire();
  return Watchdog::kRetired;
}

/// Must be called when all operations are over, before MXNet shuts down. After errors, this library
/// still pushes operations, and would find the engine destroyed.
GLUON_SYNCBN_EXPORT void gluon_syncbn_wait_for_errors() noexcept {
  mxnet::ErrorQueue::instance().wait_until_idle();
}

/// See give_cpu_contexts_workspaces(). Returns nullptr, or an error message.
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_give_cpu_contexts_workspaces(const char* libmxnet) {
  return error_of([&] { mxnet::give_cpu_contexts_workspaces(libmxnet); });
}

/// See operators_have_run().
GLUON_SYNCBN_EXPORT bool gluon_syncbn_operators_have_run(const char* libmxnet) noexcept {
  return mxnet::operators_have_run(libmxnet);
}

/// The number of keys under which operators can meet now.
GLUON_SYNCBN_EXPORT std::size_t gluon_syncbn_num_keys() noexcept {
  return Barrier::all_named().size();
}

/// From now on, counts the rounds of gluon_syncbn_rounds().
GLUON_SYNCBN_EXPORT void gluon_syncbn_count_rounds() { MetRounds::instance().begin(); }

/// See MetRounds. The text is valid until the next call.
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_rounds() {
  thread_local std::string text;
  text = MetRounds::instance().text();
  return text.c_str();
}

/// The version and the compiler of this build.
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_build_info() {
  return GLUON_SYNCBN_VERSION ", C++17, compiler " __VERSION__;
}

/// See cuda::describe_nvrtc().
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_nvrtc() noexcept {
  static const std::string text = cuda::describe_nvrtc();
  return text.c_str();
}

/// See code_cache_folder(). The text is valid until the next call.
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_code_cache() noexcept {
  static std::string folder;
  folder = code_cache_folder();
  return folder.c_str();
}

/// The names of the GPUs, or the reason why there are none. The text is valid until the next call.
GLUON_SYNCBN_EXPORT const char* gluon_syncbn_gpu_devices() {
  static std::string devices;
  try {
    devices = cuda::describe_devices();
  } catch (const std::exception& error) {
    devices = error.what();
  }
  return devices.c_str();
}
