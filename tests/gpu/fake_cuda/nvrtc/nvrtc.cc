// NVIDIA's compiler at run time. It finds kernels of gluon_syncbn among those of the lockstep.
// MXNet 2 compiles elementwise functions: the compiler of the host makes a shared library of each,
// and "machine code" is the path of that library.

#include <fcntl.h>
#include <locale.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "control.h"
#include "emulated_kernel.h"
#include "nvrtc/compiled_kernel.h"

extern char** environ;

namespace {

enum Result { kSuccess = 0, kCompilation = 6 };

struct Program {
  std::string source;
  std::string kernel;
  std::string code{};
  std::string log{};
};

/// Whether the program is a kernel of gluon_syncbn (src/cuda/compiler.cc). Finds it.
bool is_emulated(Program* program) {
  const std::string begin = "#include \"cuda/kernels/program.h\"\nGLUON_SYNCBN_KERNEL(";
  if (program->source.rfind(begin, 0) != 0) return false;
  fake_cuda::count("nvrtcCompileProgram", -1);
  std::string rest = program->source.substr(begin.size());
  const auto next = [&rest](const std::string& end) {
    const auto at = rest.find(end);
    std::string argument = rest.substr(0, at);
    rest.erase(0, at + end.size());
    return argument;
  };
  const std::string name = next(", ");
  const std::string bytes = next(", ");
  const std::string alignment = next(", ");
  const std::string body = next(")\n");
  const auto* const kernel = fake_cuda::emulated_kernel(body);
  if (!kernel) {
    program->log = "tests/gpu/emulation/bodies.h has no such kernel";
  } else if (bytes != std::to_string(kernel->bytes) ||
             alignment != std::to_string(kernel->alignment)) {
    program->log = "static_assert failed";
  } else {
    program->code = fake_cuda::kEmulated + name + " " + body;
  }
  return true;
}

/// Puts `text` in place of the statement of PTX that contains `instruction`.
void replace_ptx(std::string* source, const std::string& instruction, const std::string& text) {
  const auto at = source->find(instruction);
  if (at == std::string::npos) return;
  const auto begin = source->rfind("asm", at);
  source->replace(begin, source->find(';', source->find(" : ", at)) + 1 - begin, text);
}

int run(const std::vector<std::string>& command, const std::string& output) {
  std::vector<char*> arguments;
  for (const std::string& each : command) arguments.push_back(const_cast<char*>(each.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  pid_t child = 0;
  // Unlike fork, it calls no handlers, with which MXNet would stop its engine.
  const int failed =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = -1;
  if (failed || waitpid(child, &status, 0) != child) return -1;
  return status;
}

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Result compile(Program* program) {
  std::string source = program->source;
  replace_ptx(&source, "cvt.rn.f16.f32", "val.__x = fake_cuda_to_half(f);");
  replace_ptx(&source, "cvt.f32.f16", "val = fake_cuda_to_float(h.__x);");
  source += "\nextern \"C\" constexpr fake_cuda::CompiledKernel ";
  source += fake_cuda::kCompiledKernel;
  source += " = fake_cuda::Compiled<decltype(&" + program->kernel + "), &" + program->kernel +
            ">::kernel_of_library;\n";

  const std::string folder = FAKE_CUDA_COMPILED;
  mkdir(folder.c_str(), 0755);
  const std::string name = folder + "/" + std::to_string(std::hash<std::string>()(source));
  program->code = name + ".so";
  if (access(program->code.c_str(), R_OK) == 0) return kSuccess;
  // Another process may compile the same.
  const std::string own = name + "." + std::to_string(getpid());
  std::ofstream(own + ".cc") << source;
  const int status =
      run({FAKE_CUDA_COMPILER, "-std=c++17", "-O1", "-w", "-fpermissive", "-shared", "-fPIC",
           "-I" FAKE_CUDA_ROOT "/src", "-I" FAKE_CUDA_ROOT "/tests/gpu/fake_cuda",
           "-I" FAKE_CUDA_ROOT "/tests/gpu/fake_cuda/include", "-include", "nvrtc/prelude.h",
           own + ".cc", "-o", own + ".so"},
          own + ".log");
  if (status != 0 || std::rename((own + ".so").c_str(), program->code.c_str()) != 0) {
    program->log = "fake CUDA: " + program->kernel + " is not imitated (" + own + ".cc):\n" +
                   read(own + ".log");
    return kCompilation;
  }
  for (const char* end : {".cc", ".log"}) unlink((own + end).c_str());
  return kSuccess;
}

Result give(const std::string& text, char* to) {
  std::memcpy(to, text.c_str(), text.size() + 1);
  return kSuccess;
}
Result give_size(const std::string& text, std::size_t* to) {
  *to = text.size() + 1;
  return kSuccess;
}

}  // namespace

extern "C" {

Result nvrtcVersion(int* major, int* minor) {
  const long version = fake_cuda::settings().nvrtc;
  *major = static_cast<int>(version / 100);
  *minor = static_cast<int>(version % 100);
  return kSuccess;
}
Result nvrtcGetNumSupportedArchs(int* number) {
  *number = 1;
  return kSuccess;
}
Result nvrtcGetSupportedArchs(int* all) {
  *all = static_cast<int>(fake_cuda::settings().architecture);
  return kSuccess;
}

Result nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char**,
                          const char**) {
  *program = new Program{source, ""};
  return kSuccess;
}
Result nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return kSuccess;
}
Result nvrtcAddNameExpression(Program* program, const char* kernel) {
  program->kernel = kernel;
  return kSuccess;
}
Result nvrtcCompileProgram(Program* program, int, const char**) {
  static const locale_t its_own = newlocale(LC_ALL_MASK, "C", nullptr);
  uselocale(its_own);  // as NVRTC 11 and 12 leave the thread
  if (!is_emulated(program)) return compile(program);
  return program->code.empty() ? kCompilation : kSuccess;
}
Result nvrtcGetLoweredName(Program*, const char*, const char** name) {
  *name = fake_cuda::kCompiledKernel;
  return kSuccess;
}

Result nvrtcGetProgramLogSize(Program* program, std::size_t* bytes) {
  return give_size(program->log, bytes);
}
Result nvrtcGetProgramLog(Program* program, char* log) { return give(program->log, log); }
Result nvrtcGetCUBINSize(Program* program, std::size_t* bytes) {
  return give_size(program->code, bytes);
}
Result nvrtcGetCUBIN(Program* program, char* code) { return give(program->code, code); }
Result nvrtcGetPTXSize(Program* program, std::size_t* bytes) {
  return give_size(program->code, bytes);
}
Result nvrtcGetPTX(Program* program, char* code) { return give(program->code, code); }

const char* nvrtcGetErrorString(Result result) {
  return result == kSuccess ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION";
}

}  // extern "C"
