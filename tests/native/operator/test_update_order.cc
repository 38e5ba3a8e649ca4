#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "operator/update_order.h"

namespace gluon_syncbn::tests {

using namespace op;

namespace {

struct Numbered : Statistics {
  explicit Numbered(double number_in) : number(number_in) {}
  double number;
};

using Numbers = std::vector<double>;

/// Running statistics that remember the numbers of all batches that have moved them.
class Record {
 public:
  std::shared_ptr<UpdateOrder::Entry> reserve(const std::shared_ptr<GraphUses>& uses,
                                              std::uint64_t pass, std::size_t use) {
    return order_->reserve({uses, pass, use});
  }

  void apply(const std::shared_ptr<UpdateOrder::Entry>& entry, double number) {
    Update update;
    order_->apply(entry, std::make_shared<const Numbered>(number), &update);
    if (update.saved && update.saved->values) {
      moved_by = *static_cast<Numbers*>(update.saved->values.get());
    } else if (update.saved) {
      update.saved->values = std::make_shared<Numbers>(moved_by);
    }
    for (const auto& batch : update.batches) {
      moved_by.push_back(static_cast<const Numbered&>(*batch).number);
    }
  }

  void move(const std::shared_ptr<GraphUses>& uses, std::uint64_t pass, std::size_t use) {
    apply(reserve(uses, pass, use), number_of(pass, use));
  }

  void cancel(const std::shared_ptr<UpdateOrder::Entry>& entry) { order_->cancel(entry); }

  static double number_of(std::uint64_t pass, std::size_t use) {
    return 10 * static_cast<double>(pass) + static_cast<double>(use);
  }

  Numbers moved_by;

 private:
  const std::shared_ptr<UpdateOrder> order_ = std::make_shared<UpdateOrder>();
};

std::shared_ptr<GraphUses> graph(std::size_t uses) {
  auto graph = std::make_shared<GraphUses>(0);
  for (std::size_t use = 0; use < uses; ++use) graph->add(0, use);
  return graph;
}

}  // namespace

TEST_CASE("update order: every update is there at once, and in the end in the graph's order") {
  Record record;
  const auto uses = graph(3);
  record.move(uses, 0, 2);
  CHECK(record.moved_by == Numbers{2});
  record.move(uses, 0, 0);
  CHECK(record.moved_by == Numbers{0, 2});
  record.move(uses, 0, 1);
  CHECK(record.moved_by == Numbers{0, 1, 2});
  record.move(uses, 1, 1);
  record.move(uses, 1, 0);
  record.move(uses, 1, 2);
  CHECK(record.moved_by == Numbers{0, 1, 2, 10, 11, 12});
}

TEST_CASE("update order: the last use of a pass comes after the first of the next") {
  Record record;
  const auto uses = graph(2);
  record.move(uses, 0, 0);
  record.move(uses, 1, 0);
  record.move(uses, 0, 1);
  record.move(uses, 1, 1);
  CHECK(record.moved_by == Numbers{0, 1, 10, 11});
}

TEST_CASE("update order: between graphs the order in which passes meet, whoever is done first") {
  const auto run = [](bool reversed) {
    Record record;
    const auto one = graph(1);
    const auto other = graph(1);
    auto first = std::make_pair(record.reserve(one, 0, 0), 1.0);
    auto second = std::make_pair(record.reserve(other, 7, 0), 2.0);
    if (reversed) std::swap(first, second);
    record.apply(first.first, first.second);
    record.apply(second.first, second.second);
    return record.moved_by;
  };
  CHECK(run(false) == Numbers{1, 2});
  CHECK(run(true) == Numbers{1, 2});
}

TEST_CASE("update order: a graph that never runs holds nothing back") {
  Record record;
  const auto runs = graph(1);
  const auto never_runs = graph(1);
  for (std::uint64_t pass = 0; pass < 3; ++pass) record.move(runs, pass, 0);
  CHECK(record.moved_by == Numbers{0, 10, 20});
}

TEST_CASE("update order: a use that never comes holds nothing back") {
  Record record;
  const auto uses = graph(3);
  Numbers expected;
  for (std::uint64_t pass = 0; pass < 100; ++pass) {
    for (const std::size_t use : {0, 2}) {
      record.move(uses, pass, use);
      expected.push_back(Record::number_of(pass, use));
      CHECK(record.moved_by == expected);
    }
  }
}

TEST_CASE("update order: a pass that failed leaves out its own update only") {
  Record record;
  const auto uses = graph(2);
  const auto failed = record.reserve(uses, 0, 0);
  record.move(uses, 0, 1);
  record.cancel(failed);
  record.move(uses, 1, 1);
  record.move(uses, 1, 0);
  CHECK(record.moved_by == Numbers{1, 10, 11});
}

TEST_CASE("update order: a copy of a graph, and another trace, have uses of their own") {
  GraphUses uses(3);
  CHECK(uses.add(3, 1) == std::optional<std::size_t>(0));
  CHECK(uses.add(3, 0) == std::optional<std::size_t>(1));
  CHECK_FALSE(uses.add(3, 1));
  CHECK_FALSE(uses.add(4, 2));
}

TEST_CASE("update order: all graphs that move the same array on one device share its order") {
  int array = 0;
  const auto first = graph(1);
  const auto second = graph(1);
  const Device device{"cpu", 0};
  const bool is_shared = first->order(device, &array) == second->order(device, &array);
  CHECK(is_shared);
  const bool is_of_device = first->order(device, &array) != graph(1)->order({"cpu", 1}, &array);
  CHECK(is_of_device);
}

}  // namespace gluon_syncbn::tests
