#ifndef GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_SCENARIO_H_
#define GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_SCENARIO_H_

#include <functional>
#include <string>
#include <vector>

#include "scenarios/host_api.h"

namespace gluon_syncbn::scenarios {

/// What a scenario is given. It throws where an outcome is wrong, and reports the bits that every
/// host must give.
class Session {
 public:
  explicit Session(std::string name) : name_(std::move(name)) {}

  /// A layer's key, of this scenario only.
  std::string key(const std::string& layer) const { return name_ + "/" + layer; }

  void report(const std::string& what, const Array& array);
  void report(const std::string& what, const std::vector<Array>& arrays);
  const std::vector<std::string>& reports() const { return reports_; }

 private:
  const std::string name_;
  std::vector<std::string> reports_;
};

struct Scenario {
  std::string name;
  std::function<void(Session&)> run;
};

/// The one list, in the order in which they run.
std::vector<Scenario> all_scenarios();

std::vector<Scenario> engine_scenarios();
std::vector<Scenario> training_scenarios();
std::vector<Scenario> graph_scenarios();
std::vector<Scenario> process_scenarios();
std::vector<Scenario> fault_scenarios();

/// Throws Failure unless `condition`.
void require(bool condition, const std::string& what);

/// The message of the HostError that `call` throws.
std::string error_of(const std::function<void()>& call);
/// The same, which must contain all of `parts`.
void require_error(const std::function<void()>& call, const std::vector<std::string>& parts);

/// Seconds that devices wait for each other, for as long as it lives.
class Timeout {
 public:
  explicit Timeout(double seconds) { adapter().set_timeout(seconds); }
  ~Timeout() { adapter().set_timeout(kUsual); }
  Timeout(const Timeout&) = delete;
  Timeout& operator=(const Timeout&) = delete;

  static constexpr double kUsual = 60;
};

}  // namespace gluon_syncbn::scenarios

#endif  // GLUON_SYNCBN_TESTS_NATIVE_SCENARIOS_SCENARIO_H_
