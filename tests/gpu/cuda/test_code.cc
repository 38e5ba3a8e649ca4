// How kernels are compiled and loaded, on the fake NVRTC and the fake driver.

#include <doctest/doctest.h>
#include <locale.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/error.h"
#include "cuda/compiler.h"
#include "cuda/fake_cuda_control.h"
#include "cuda/kernel.h"
#include "cuda/kernels/merge_devices.h"
#include "cuda/kernels/thread_per_channel.h"
#include "cuda/nvrtc.h"
#include "support/captured_errors.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "support/step.h"

namespace gluon_syncbn::tests {
namespace {

long compilations() { return fakeCudaCount("nvrtcCompileProgram", -1); }

const cuda::KernelSource& a_source() {
  return cuda::Kernel::of<cuda::PerChannel<cuda::CountBatch<float>>>().source();
}

int next_gpu = 16;                   // the first that no other test uses; each test takes new ones
constexpr int kFirstContext = 6400;  // with 64 GPUs, no other test uses the contexts from there on

}  // namespace

TEST_CASE("cuda code: machine code for a GPU that NVRTC knows, otherwise PTX for the driver") {
  // The fake NVRTC knows sm_80.
  CHECK(cuda::architecture_for(80) == "sm_80");
  CHECK(cuda::architecture_for(86) == "sm_80");
  CHECK(cuda::architecture_for(90) == "compute_80");
  CHECK(cuda::architecture_for(120) == "compute_80");
  CHECK(error_of([] { cuda::architecture_for(75); }) ==
        "NVRTC 11.99 compiles for no GPU of compute capability 7.5: use an earlier CUDA");
}

TEST_CASE("cuda code: another file of the same NVRTC is another NVRTC") {
  const Folder folder;
  cuda::Nvrtc nvrtc;
  nvrtc.major = 12;
  nvrtc.minor = 9;
  nvrtc.path = folder.path() + "/libnvrtc.so.12";
  const std::string builtins = folder.path() + "/libnvrtc-builtins.so.12.9";
  std::set<std::string> identities;
  const auto is_new = [&] { return identities.insert(cuda::identity_of(nvrtc)).second; };
  CHECK(is_new());  // without files
  for (const std::string& path : {nvrtc.path, builtins}) {
    CAPTURE(path);
    write(path, "one");
    age(path, std::chrono::hours(1));
    CHECK(is_new());
    age(path, std::chrono::hours(2));
    CHECK(is_new());
    write(path, "three");
    age(path, std::chrono::hours(2));
    CHECK(is_new());
    CHECK_FALSE(is_new());
  }
  // A link to a file is this file.
  files::create_symlink("libnvrtc.so.12", folder.path() + "/libnvrtc.so");
  nvrtc.path = folder.path() + "/libnvrtc.so";
  CHECK_FALSE(is_new());
  nvrtc.minor = 8;
  CHECK(is_new());
}

TEST_CASE("cuda code: it is compiled once for each folder, kernel and architecture") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  const auto compiles = [](const cuda::KernelSource& source, const char* architecture) {
    const long before = compilations();
    cuda::code_of(source, architecture);
    return compilations() > before;
  };
  CHECK(compiles(a_source(), "sm_80"));
  CHECK(uselocale(nullptr) == LC_GLOBAL_LOCALE);  // NVRTC 11 and 12 leave the thread another one
  CHECK_FALSE(compiles(a_source(), "sm_80"));
  CHECK(compiles(a_source(), "compute_80"));
  cuda::KernelSource other = a_source();
  other.name += "_2";
  CHECK(compiles(other, "sm_80"));
  const std::string kept = cuda::code_of(a_source(), "sm_80");
  const ScopedVariable none("XDG_CACHE_HOME", "");
  CHECK(compiles(a_source(), "sm_80"));
  CHECK(cuda::code_of(a_source(), "sm_80") == kept);
}

TEST_CASE("cuda code: GPUs of one kind compile a kernel once, without a folder too") {
  const Setting devices("DEVICES", next_gpu + 8);
  const int first = std::exchange(next_gpu, next_gpu + 8);
  // No other test has this kernel.
  auto& kernel = cuda::Kernel::of<cuda::PerChannel<cuda::CountBatch<double>>>();
  const long before = compilations();
  const long loads_before = fakeCudaCount("cuFuncLoad", -1);
  run_ranks(8, [&](std::size_t i) { kernel.load(first + static_cast<int>(i)); });
  CHECK(compilations() <= before + 1);
  kernel.load(first);
  // Without it, a driver loads a kernel when it is launched first, in the middle of a round.
  CHECK(fakeCudaCount("cuFuncLoad", -1) == loads_before + 8);
}

TEST_CASE("cuda code: a kernel that does not compile is an error, and its log is printed") {
  const Setting devices("DEVICES", next_gpu + 1);
  const CapturedErrors errors;
  cuda::KernelSource unknown = a_source();
  unknown.body = "gluon_syncbn::cuda::Nothing";
  const std::string error = error_of([&] { cuda::code_of(unknown, "sm_80"); });
  CHECK(contains(error, "NVRTC 11.99 ("));
  CHECK(contains(error,
                 "/libnvrtc.so.11.2) does not compile 'number_of_batches' for sm_80; its log "
                 "has been printed"));
  CHECK(contains(errors.text(), ", gluon_syncbn::cuda::Nothing)"));
  CHECK(contains(errors.text(), "has no such kernel"));
}

TEST_CASE(
    "cuda code: a driver that does not take the code says why, and the error says what to do") {
  const Setting devices("DEVICES", next_gpu + 1);
  const auto error_for = [](const std::string& result) {
    const Faults refused("cuModuleLoadData=" + result);
    auto& kernel = cuda::Kernel::of<cuda::PerChannel<cuda::CountBatch<float>>>();
    return error_of([&] { kernel.load(next_gpu); });
  };
  const std::string too_old = error_for("222");
  CHECK(contains(too_old, "CUDA: kernel 'number of batches' on gpu("));
  CHECK(
      contains(too_old,
               "(CUDA_ERROR_UNSUPPORTED_PTX_VERSION): the fake driver's log: the provided PTX was "
               "compiled with an unsupported toolchain.; the driver is for CUDA up to 11.2, and "
               "NVRTC 11.99 ("));
  for (const std::string& error : {too_old, error_for("218")}) {
    CHECK(contains(error, ": install a newer driver, or set GLUON_SYNCBN_NVRTC to an NVRTC that"));
  }
  const std::string no_compiler = error_for("221");
  CHECK(contains(no_compiler, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"));
  CHECK(contains(no_compiler, "with libnvidia-ptxjitcompiler.so: mount this library"));
  CHECK_FALSE(contains(error_for("999"), ";"));
}

TEST_CASE("cuda code: the first forward loads the kernels of all later steps") {
  const ShareGpus share;
  const Setting devices("DEVICES", 64);
  for (const ActType type : {ActType::kNone, ActType::kElu}) {
    for (const auto& [shortcut, in_place] :
         {std::pair(false, false), {true, false}, {false, true}}) {
      CAPTURE(static_cast<int>(type));
      CAPTURE(shortcut);
      CAPTURE(in_place);
      const int index = kFirstContext + next_gpu++;  // to which nothing is loaded yet
      REQUIRE(next_gpu <= 64);
      const auto step = [&, adds = shortcut, in = in_place](const Layout& layout) {
        Layer layer({{"gpu", 1}}, {layout}, index);
        layer.for_each([&](auto* shard) {
          shard->activation = {type, 1};
          shard->adds_shortcut = adds;
          shard->in_place = in;
          shard->momentum = std::nullopt;
        });
        CHECK(layer.step() == no_errors(2));
      };
      const long before = loads();
      step({0, 8, 1});
      const long loaded = loads();
      if (!shortcut) CHECK(loaded == before + 13);  // as docs/gpu.md says
      // Several blocks, in both tilings.
      for (const Layout& layout : {Layout{2, 3, 5000}, Layout{3000, 8, 1}}) step(layout);
      CHECK(loads() == loaded);
    }
  }
}

}  // namespace gluon_syncbn::tests
