// Compiles all kernels with NVRTC.
//
//   compile_kernels sm_90            keeps the code where the library looks for it
//   compile_kernels sm_80 FOLDER     writes it to FOLDER/sm_80.KERNEL
//   compile_kernels compute_80 ...   PTX

#include <exception>
#include <fstream>
#include <iostream>
#include <string>

#include "cuda/compiler.h"
#include "cuda/kernel.h"
#include "emulation/bodies.h"

namespace gluon_syncbn::cuda {
namespace {

int number = 0;

template <class Body>
void compile(const std::string& architecture, const std::string& folder) {
  const KernelSource& source = Kernel::of<Body>().source();
  const std::string code = code_of(source, architecture);
  ++number;
  if (folder.empty()) return;
  std::string name = source.body;
  for (char& c : name) {
    if (c == ' ') c = '_';
  }
  std::ofstream file(folder + "/" + architecture + "." + name, std::ios::binary);
  file << code;
  if (!file.flush()) throw Error("cannot write to " + folder);
}

void compile_all(const std::string& architecture, const std::string& folder) {
#define GLUON_SYNCBN_COMPILE(...) compile<__VA_ARGS__>(architecture, folder);
  GLUON_SYNCBN_CHANNEL_BODIES(GLUON_SYNCBN_COMPILE)
  GLUON_SYNCBN_DATA_BODIES(GLUON_SYNCBN_COMPILE, float)
  GLUON_SYNCBN_DATA_BODIES(GLUON_SYNCBN_COMPILE, double)
  GLUON_SYNCBN_DATA_BODIES(GLUON_SYNCBN_COMPILE, Half)
}

}  // namespace
}  // namespace gluon_syncbn::cuda

int main(int argc, char** argv) {
  try {
    if (argc < 2 || argc > 3) throw gluon_syncbn::Error("expected an architecture, and a folder");
    gluon_syncbn::cuda::architecture_for(999);  // throws if there is no NVRTC
    gluon_syncbn::cuda::compile_all(argv[1], argc > 2 ? argv[2] : "");
    std::cout << gluon_syncbn::cuda::number << " kernels for " << argv[1] << "\n";
  } catch (const std::exception& error) {
    std::cerr << "compile_kernels: " << error.what() << "\n";
    return 1;
  }
}
