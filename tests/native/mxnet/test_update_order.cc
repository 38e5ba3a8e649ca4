#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mxnet/update_order.h"

namespace gluon_syncbn::tests {
namespace {

struct Numbered : Statistics {
  explicit Numbered(double number_in) : number(number_in) {}
  double number;
};

/// Records the updates that are applied, each by one number.
struct Record {
  UpdateOrder order;
  std::vector<double> applied;

  void update(std::size_t use, double number) {
    apply(order.update(use, std::make_shared<const Numbered>(number)));
  }
  void fail(std::size_t use) { apply(order.update(use, nullptr)); }

  void apply(const std::vector<UpdateOrder::StatisticsPtr>& due) {
    for (const auto& each : due) applied.push_back(static_cast<const Numbered&>(*each).number);
  }
};

}  // namespace

TEST_CASE("update order: uses that come in any order are applied in program order") {
  Record record;
  for (std::size_t use = 0; use < 3; ++use) CHECK(record.order.add_use() == use);
  record.update(2, 3);
  record.update(1, 2);
  CHECK(record.applied.empty());
  record.update(0, 1);
  record.update(1, 5);
  record.update(0, 4);
  record.update(2, 6);
  CHECK(record.applied == std::vector<double>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("update order: a first use of the next pass waits for the last of this one") {
  Record record;
  record.order.add_use();
  record.order.add_use();
  record.update(0, 1);
  record.update(0, 3);
  CHECK(record.applied == std::vector<double>{1});
  record.update(1, 2);
  record.update(1, 4);
  CHECK(record.applied == std::vector<double>{1, 2, 3, 4});
}

TEST_CASE("update order: a single use is applied at once in every pass") {
  Record record;
  record.order.add_use();
  for (std::uint64_t pass = 0; pass < 5; ++pass) record.update(0, static_cast<double>(pass));
  CHECK(record.applied == std::vector<double>{0, 1, 2, 3, 4});
}

TEST_CASE("update order: no use joins after the first update") {
  Record record;
  record.order.add_use();
  record.update(0, 1);
  CHECK_FALSE(record.order.add_use());
}

TEST_CASE("update order: a use that never comes does not hold back more than one pass") {
  Record record;
  for (int use = 0; use < 3; ++use) record.order.add_use();
  for (std::uint64_t pass = 0; pass < 100; ++pass) {
    record.update(0, static_cast<double>(2 * pass));
    record.update(2, static_cast<double>(2 * pass + 1));
  }
  CHECK(record.applied.size() >= 197);
  for (std::size_t i = 0; i < record.applied.size(); ++i) {
    CHECK(record.applied[i] == static_cast<double>(i));
  }
}

TEST_CASE("update order: a use that failed keeps its place") {
  Record record;
  for (int use = 0; use < 3; ++use) record.order.add_use();
  record.update(1, 2);
  record.update(2, 3);
  record.fail(0);
  CHECK(record.applied == std::vector<double>{2, 3});
  record.update(1, 5);
  record.update(0, 4);
  record.fail(2);
  record.update(0, 6);
  CHECK(record.applied == std::vector<double>{2, 3, 4, 5, 6});
}

TEST_CASE("update order: after a use was skipped, the order does not depend on who comes first") {
  std::vector<Record> records(2);
  for (std::size_t device = 0; device < 2; ++device) {
    Record& record = records[device];
    for (int use = 0; use < 2; ++use) record.order.add_use();
    record.update(0, 1);
    record.update(0, 2);
    for (int pass = 2; pass < 50; ++pass) {
      const std::size_t first = device * static_cast<std::size_t>(pass) % 2;
      for (const std::size_t use : {first, 1 - first}) {
        record.update(use, 2 * pass + static_cast<double>(use));
      }
    }
  }
  CHECK(records[0].applied == records[1].applied);
  CHECK(records[0].applied.size() >= 96);
}

}  // namespace gluon_syncbn::tests
