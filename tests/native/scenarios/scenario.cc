#include "scenarios/scenario.h"

#include <cstdint>
#include <sstream>

namespace gluon_syncbn::scenarios {

void Session::report(const std::string& what, const Array& array) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const unsigned char byte : array.bytes()) hash = (hash ^ byte) * 1099511628211u;
  std::ostringstream line;
  line << what << " " << std::hex << hash;
  reports_.push_back(line.str());
}

void Session::report(const std::string& what, const std::vector<Array>& arrays) {
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    report(what + "[" + std::to_string(i) + "]", arrays[i]);
  }
}

std::vector<Scenario> all_scenarios() {
  std::vector<Scenario> all;
  for (const auto& part : {engine_scenarios(), training_scenarios(), graph_scenarios(),
                           process_scenarios(), fault_scenarios()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void require(bool condition, const std::string& what) {
  if (!condition) throw Failure("wrong: " + what);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const HostError& error) {
    return error.what();
  }
  throw Failure("no error where one is expected");
}

void require_error(const std::function<void()>& call, const std::vector<std::string>& parts) {
  const std::string message = error_of(call);
  for (const std::string& part : parts) {
    require(message.find(part) != std::string::npos,
            "no '" + part + "' in the error '" + message + "'");
  }
}

}  // namespace gluon_syncbn::scenarios
