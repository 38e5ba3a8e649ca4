// Runs the scenarios on a host: MXNet itself, or the stand-in of tests/native/host.
//
//   host_scenarios [--host LIB] [--recorder LIB] [--adapter LIB] [--devices cpu|gpu]
//                  [--record FILE] [--list] [NAME...]
//
// --record writes what each scenario reported and what went between the host and the adapter. Two
// hosts that do the same give the same file.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "scenarios/host_api.h"
#include "scenarios/scenario.h"

namespace gluon_syncbn::scenarios {
namespace {

constexpr int kMostDevices = 4;
constexpr unsigned kSecondsForOne = 120;

std::string running;

void too_long(int /*signal*/) {
  const std::string message = "\nscenarios: '" + running + "' does not end\n";
  if (write(STDERR_FILENO, message.data(), message.size()) < 0) _exit(3);
  _exit(2);
}

/// Tells the recorder which threads are the workers of which context.
void name_workers() {
  const std::size_t workers = Libraries::get().dev_type == host::kGPU ? 2 : 1;
  for (int d = 0; d < kMostDevices; ++d) {
    struct All {
      std::mutex mutex;
      std::condition_variable met;
      std::size_t present = 0;
    };
    const auto all = std::make_shared<All>();
    for (std::size_t i = 0; i < workers; ++i) {
      push(device(d), Property::kNormal, {}, {}, [=](const OnComplete& on_complete) {
        const std::string name = "a worker of " + device(d).name();
        Libraries::get().recorder.name_thread(name.c_str());
        {
          std::unique_lock<std::mutex> lock(all->mutex);
          ++all->present;
          all->met.notify_all();
          // None may take the part of another.
          all->met.wait(lock, [&] { return all->present == workers; });
        }
        on_complete();
      });
    }
  }
  check(host().wait_all());
}

/// What the last operations held goes a little after they are over.
void require_all_given_back() {
  const auto left = [] { return Libraries::get().recorder.held() || adapter().num_keys(); };
  for (int i = 0; i < 10000 && left(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  require(Libraries::get().recorder.held() == 0,
          std::to_string(Libraries::get().recorder.held()) +
              " arrays, operators or operations were not given back");
  require(adapter().num_keys() == 0, "keys are left");
}

std::string run(const Scenario& scenario) {
  running = scenario.name;
  alarm(kSecondsForOne);
  std::ostringstream record;
  record << "scenario " << scenario.name << "\n";
  Session session(scenario.name);
  scenario.run(session);
  // Errors that nobody has read do not concern the next one.
  host().wait_all();
  require_all_given_back();
  for (const auto& line : session.reports()) record << line << "\n";
  record << Libraries::get().recorder.take();
  return record.str();
}

struct Arguments {
  std::string host = GLUON_SYNCBN_STAND_IN;
  std::string recorder = GLUON_SYNCBN_RECORDER;
  std::string adapter = GLUON_SYNCBN_ADAPTER;
  std::string record;
  int dev_type = host::kCPU;
  bool list = false;
  std::vector<std::string> names;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) throw Failure(option + " needs a value");
      return argv[++i];
    };
    if (option == "--host") {
      arguments.host = value();
    } else if (option == "--recorder") {
      arguments.recorder = value();
    } else if (option == "--adapter") {
      arguments.adapter = value();
    } else if (option == "--record") {
      arguments.record = value();
    } else if (option == "--devices") {
      const std::string type = value();
      if (type != "cpu" && type != "gpu") throw Failure("--devices is cpu or gpu");
      arguments.dev_type = type == "gpu" ? host::kGPU : host::kCPU;
    } else if (option == "--list") {
      arguments.list = true;
    } else if (option.rfind("--", 0) == 0) {
      throw Failure("unknown option " + option);
    } else {
      arguments.names.push_back(option);
    }
  }
  return arguments;
}

int run_all(const Arguments& arguments) {
  auto scenarios = all_scenarios();
  if (!arguments.names.empty()) {
    const auto not_named = [&](const Scenario& scenario) {
      return std::find(arguments.names.begin(), arguments.names.end(), scenario.name) ==
             arguments.names.end();
    };
    scenarios.erase(std::remove_if(scenarios.begin(), scenarios.end(), not_named), scenarios.end());
    if (scenarios.size() != arguments.names.size()) throw Failure("no such scenario");
  }
  if (arguments.list) {
    for (const auto& scenario : scenarios) std::cout << scenario.name << "\n";
    return 0;
  }
  signal(SIGALRM, too_long);
  Libraries::get().dev_type = arguments.dev_type;
  Libraries::get().load(arguments.host, arguments.recorder, arguments.adapter);
  Libraries::get().recorder.name_thread("a thread of the user");
  adapter().set_timeout(Timeout::kUsual);
  name_workers();

  std::string record;
  std::size_t failed = 0;
  for (const auto& scenario : scenarios) {
    try {
      record += run(scenario);
    } catch (const std::exception& error) {
      ++failed;
      std::cout << "FAILED: " << scenario.name << ": " << error.what() << std::endl;
      host().wait_all();
      Libraries::get().recorder.take();
    }
  }
  adapter().retire();
  check(host().notify_shutdown());
  if (!arguments.record.empty()) std::ofstream(arguments.record) << record;
  std::cout << "scenarios: " << scenarios.size() - failed << " of " << scenarios.size()
            << " passed on " << arguments.host << std::endl;
  return failed == 0 && !scenarios.empty() ? 0 : 1;
}

}  // namespace
}  // namespace gluon_syncbn::scenarios

int main(int argc, char** argv) {
  using namespace gluon_syncbn::scenarios;
  try {
    return run_all(parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "scenarios: " << error.what() << std::endl;
    return 1;
  }
}
