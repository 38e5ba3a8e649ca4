#include "kernels/kernel.h"

#include <map>
#include <mutex>
#include <string>

#include "die.h"
#include "kernels/forms.h"

namespace fake_cuda {
namespace {

const Name& parsed(const char* mangled) {
  static std::mutex mutex;
  static auto& names = *new std::map<std::string, Name>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = names.find(mangled);
  if (found == names.end()) found = names.emplace(mangled, parse_name(mangled)).first;
  return found->second;
}

}  // namespace

std::function<void()> kernel(const char* name, dim3 grid, dim3, void** arguments) {
  const Launch launch{parsed(name), grid, arguments};
  for (const auto form :
       {elementwise, optimizer, reduction, broadcasting, expression, dense, random}) {
    if (Task task = form(launch)) return task;
  }
  die("MXNet's kernel is not imitated: " + readable(name));
}

}  // namespace fake_cuda
