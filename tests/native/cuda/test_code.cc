// How kernels are compiled, kept and loaded, on the fake NVRTC and the fake driver.

#include <doctest/doctest.h>
#include <locale.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/error.h"
#include "cuda/code_cache.h"
#include "cuda/compiler.h"
#include "cuda/fake_cuda_control.h"
#include "cuda/kernel.h"
#include "cuda/kernels/merge_devices.h"
#include "cuda/kernels/thread_per_channel.h"
#include "cuda/nvrtc.h"
#include "support/captured_errors.h"
#include "support/ranks.h"
#include "support/step.h"

namespace gluon_syncbn::tests {
namespace {

namespace files = std::filesystem;

/// A folder for one test.
class Folder {
 public:
  Folder() { REQUIRE(mkdtemp(path_.data()) != nullptr); }
  ~Folder() { files::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/gluon_syncbn_test_XXXXXX";
};

void write(const files::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// Makes a file look as if its last use had been so long ago.
void age(const files::path& path, std::chrono::minutes minutes) {
  files::last_write_time(path, files::file_time_type::clock::now() - minutes);
}

/// Saves code, and returns its file, which was not there before.
files::path save(const std::string& key, const std::string& code, const std::string& folder) {
  const auto all = [&folder] {
    return std::set<files::path>(files::directory_iterator(folder), files::directory_iterator());
  };
  const auto before = all();
  cuda::CodeFile(key).save(code);
  for (const files::path& path : all()) {
    if (before.count(path) == 0) return path;
  }
  return "";
}

long compilations() { return fakeCudaCount("nvrtcCompileProgram", -1); }

const cuda::KernelSource& a_source() {
  return cuda::Kernel::of<cuda::PerChannel<cuda::CountBatch<float>>>().source();
}

int next_gpu = 16;            // the first that no other test uses; each test takes new ones
constexpr int kIndex = 6400;  // with 64 GPUs, no other test uses the contexts from there on

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

TEST_CASE("cuda code: the folder keeps code, and finds damage") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path() + "/not/there");
  const std::string folder = home.path() + "/not/there/gluon_syncbn";
  const cuda::CodeFile file("key");
  CHECK(file.load().empty());
  const std::string code("co\0de", 5);
  file.save(code);
  CHECK(cuda::CodeFile("key").load() == code);
  CHECK(cuda::CodeFile("other").load().empty());
  CHECK(cuda::code_cache_folder() == folder);
  CHECK(files::status(folder).permissions() == files::perms::owner_all);
  // One file, and no rest of its writing.
  CHECK(std::distance(files::directory_iterator(folder), {}) == 1);
  const files::path path = *files::directory_iterator(folder);
  SUBCASE("cut off") { files::resize_file(path, files::file_size(path) - 1); }
  SUBCASE("empty") { files::resize_file(path, 0); }
  SUBCASE("changed") {
    std::fstream changed(path, std::ios::in | std::ios::out | std::ios::binary);
    changed.seekp(-1, std::ios::end);
    changed << 'E';
  }
  CHECK(file.load().empty());
  file.save(code);
  CHECK(file.load() == code);
}

TEST_CASE("cuda code: without a folder of this user alone nothing is kept") {
  const Folder home;
  const std::string folder = home.path() + "/gluon_syncbn";
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  SUBCASE("others can write there") {
    files::create_directory(folder);
    files::permissions(folder, files::perms::all);
  }
  SUBCASE("a file is in its place") { write(folder, "file"); }
  SUBCASE("a link is in its place") {
    files::create_directory(home.path() + "/other");
    files::create_symlink("other", folder);
  }
  SUBCASE("a link to nothing is in its place") { files::create_symlink("nothing", folder); }
  SUBCASE("a path that is not absolute") { setenv("XDG_CACHE_HOME", "relative", 1); }
  CHECK(cuda::code_cache_folder().empty());
  const cuda::CodeFile file("key");
  file.save("code");
  CHECK(file.load().empty());
}

TEST_CASE("cuda code: a folder that changes after it was looked at is not used") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  const std::string folder = home.path() + "/gluon_syncbn";
  cuda::CodeFile("key").save("code");
  const cuda::CodeFile file("key");
  const std::string moved = home.path() + "/moved";
  files::rename(folder, moved);
  SUBCASE("a link") { files::create_symlink(moved, folder); }
  SUBCASE("others can write there") {
    files::copy(moved, folder);
    files::permissions(folder, files::perms::all);
  }
  CHECK(file.load().empty());
  files::remove(*files::directory_iterator(moved));
  file.save("code");
  CHECK(files::is_empty(moved));
}

TEST_CASE("cuda code: the folder that the folder lies in may be a link") {
  const Folder home;
  files::create_directory(home.path() + "/far");
  files::create_symlink("far", home.path() + "/.cache");
  const ScopedVariable cache("XDG_CACHE_HOME", home.path() + "/.cache");
  cuda::CodeFile("key").save("code");
  CHECK(cuda::CodeFile("key").load() == "code");
}

TEST_CASE("cuda code: only a file that this user alone can write is read") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  const files::path path = [&home] {
    files::create_directory(home.path() + "/gluon_syncbn");
    return save("key", "code", home.path() + "/gluon_syncbn");
  }();
  SUBCASE("a link") {
    files::rename(path, home.path() + "/moved");
    files::create_symlink(home.path() + "/moved", path);
  }
  SUBCASE("others can write to it") { files::permissions(path, files::perms::all); }
  SUBCASE("a folder") {
    files::remove(path);
    files::create_directory(path);
  }
  SUBCASE("a pipe, which no process writes") {
    files::remove(path);
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  }
  CHECK(cuda::CodeFile("key").load().empty());
}

TEST_CASE("cuda code: over the limit, the files go whose last use is the longest ago") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  const std::string folder = home.path() + "/gluon_syncbn";
  files::create_directory(folder);
  const std::string code(1000, 'x');
  const files::path first = save("first", code, folder);
  const files::path second = save("second", code, folder);
  const files::path third = save("third", code, folder);
  // Other files are neither removed nor counted.
  const std::string digits(32, '0');
  for (const std::string& name : {std::string("mine"), digits + "0", digits + ".txt",
                                  digits + ".1234567", std::string(32, 'g'), "x" + digits}) {
    write(folder + "/" + name, std::string(10000, 'x'));
    age(folder + "/" + name, std::chrono::hours(99));
  }
  write(home.path() + "/target", code);
  files::create_symlink("../target", folder + "/" + digits);
  age(first, std::chrono::hours(3));
  age(second, std::chrono::hours(2));
  age(third, std::chrono::hours(1));
  CHECK(cuda::CodeFile("first").load() == code);
  // There is room for three.
  const cuda::CodeFile fourth("fourth", 3 * (code.size() + 32));
  fourth.save(code);
  CHECK(files::exists(first));
  CHECK_FALSE(files::exists(second));
  CHECK(files::exists(third));
  CHECK(fourth.load() == code);
  CHECK(std::distance(files::directory_iterator(folder), {}) == 3 + 6 + 1);
}

TEST_CASE("cuda code: what writers have left that died is removed") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  const std::string folder = home.path() + "/gluon_syncbn";
  files::create_directory(folder);
  const std::string path = save("key", "code", folder);
  for (const char* end : {".aB3xyZ", ".100000", ".100001"}) write(path + end, "co");
  age(path + ".aB3xyZ", std::chrono::minutes(61));
  age(path + ".100000", std::chrono::minutes(59));
  CHECK(cuda::CodeFile("key").load() == "code");
  CHECK(files::exists(path + ".aB3xyZ"));  // a reader removes nothing
  cuda::CodeFile("key").save("new");
  CHECK(cuda::CodeFile("key").load() == "new");
  CHECK_FALSE(files::exists(path + ".aB3xyZ"));
  CHECK(files::exists(path + ".100000"));
  CHECK(files::exists(path + ".100001"));
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

TEST_CASE("cuda code: HOME is the second choice, and neither is needed") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", "");
  const ScopedVariable of_user("HOME", home.path());
  CHECK(cuda::code_cache_folder() == home.path() + "/.cache/gluon_syncbn");
  const ScopedVariable none("HOME", "");
  CHECK(cuda::code_cache_folder().empty());
}

TEST_CASE("cuda code: it is compiled once for each folder, kernel and architecture") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  const long before = compilations();
  const std::string code = cuda::code_of(a_source(), "sm_80");
  CHECK(compilations() == before + 1);
  CHECK(uselocale(nullptr) == LC_GLOBAL_LOCALE);  // NVRTC 11 and 12 leave the thread another one
  CHECK(cuda::code_of(a_source(), "sm_80") == code);
  CHECK(compilations() == before + 1);
  cuda::code_of(a_source(), "compute_80");
  CHECK(compilations() == before + 2);
  cuda::KernelSource other = a_source();
  other.name += "_2";
  cuda::code_of(other, "sm_80");
  CHECK(compilations() == before + 3);
  const ScopedVariable none("XDG_CACHE_HOME", "");
  cuda::code_of(a_source(), "sm_80");
  CHECK(compilations() == before + 4);
}

TEST_CASE("cuda code: several threads and processes fill one folder") {
  const Folder home;
  const ScopedVariable cache("XDG_CACHE_HOME", home.path());
  std::atomic<int> wrong{0};
  run_ranks(8, [&](std::size_t) {
    for (int i = 0; i < 50; ++i) {
      const std::string code(static_cast<std::size_t>(1000 + i), 'x');
      const cuda::CodeFile file("key" + std::to_string(i));
      file.save(code);
      if (file.load() != code) ++wrong;
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("cuda code: GPUs of one kind compile a kernel once, without a folder too") {
  const Setting devices("DEVICES", next_gpu + 8);
  const int first = std::exchange(next_gpu, next_gpu + 8);
  // No other test has this kernel.
  auto& kernel = cuda::Kernel::of<cuda::PerChannel<cuda::CountBatch<double>>>();
  const long before = compilations();
  const long loads_before = loads();
  const long calls_before = fakeCudaCount("cuFuncLoad", -1);
  run_ranks(8, [&](std::size_t i) { kernel.load(first + static_cast<int>(i)); });
  CHECK(compilations() <= before + 1);
  CHECK(loads() == loads_before + 8);
  CHECK(fakeCudaCount("cuFuncLoad", -1) == calls_before + 8);
  kernel.load(first);
  CHECK(loads() == loads_before + 8);
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
      const int index = kIndex + next_gpu++;  // to which nothing is loaded yet
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
      CHECK(loaded >= before + 13);
      // Several blocks, in both tilings.
      for (const Layout& layout : {Layout{2, 3, 5000}, Layout{3000, 8, 1}}) step(layout);
      CHECK(loads() == loaded);
    }
  }
}

}  // namespace gluon_syncbn::tests
