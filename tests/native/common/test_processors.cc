#include <doctest/doctest.h>
#include <sched.h>

#include <string>

#include "common/processors.h"
#include "support/folder.h"

namespace gluon_syncbn::tests {

TEST_CASE("processors: those of the affinity") {
  cpu_set_t all;
  REQUIRE(sched_getaffinity(0, sizeof(all), &all) == 0);
  CHECK(cores() == CPU_COUNT(&all));
  CHECK(processors() <= cores());
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int i = 0; CPU_COUNT(&one) == 0; ++i) {
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  }
  REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
  CHECK(cores() == 1);
  REQUIRE(sched_setaffinity(0, sizeof(all), &all) == 0);
}

TEST_CASE("processors: the limit of a container") {
  const Folder group;
  const auto limit = [&](const std::string& quota, const std::string& period) {
    write(group.path() + "/cpu/cpu.cfs_quota_us", quota);
    write(group.path() + "/cpu/cpu.cfs_period_us", period);
    return processors(group.path());
  };
  CHECK(processors(group.path()) == cores());
  files::create_directory(group.path() + "/cpu");
  CHECK(limit("-1\n", "100000\n") == cores());
  CHECK(limit("25000\n", "100000\n") == 0.25);
  write(group.path() + "/cpu.max", "50000 100000\n");
  CHECK(processors(group.path()) == 0.5);
  write(group.path() + "/cpu.max", "max 100000\n");
  CHECK(limit("-1\n", "100000\n") == cores());
}

}  // namespace gluon_syncbn::tests
