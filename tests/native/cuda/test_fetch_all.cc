#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/fetch_all.h"
#include "support/values.h"

namespace gluon_syncbn::tests {
namespace {

/// Statistics that are fetched when the test says so.
class Late {
 public:
  explicit Late(PartialStatistics statistics) : statistics_(std::move(statistics)) {}

  void fetch(std::function<void(const PartialStatistics&, const std::string&)> then) {
    then_ = std::move(then);
  }
  void come(const std::string& error = "") const { then_(statistics_, error); }

 private:
  const PartialStatistics statistics_;
  std::function<void(const PartialStatistics&, const std::string&)> then_;
};

}  // namespace

TEST_CASE("cuda processes: copies are in the order of devices, whichever comes first") {
  for (const std::string error : {"", "device lost"}) {
    for (const bool reversed : {false, true}) {
      std::vector<std::shared_ptr<Late>> all;
      for (std::uint32_t i = 0; i < 3; ++i) {
        all.push_back(std::make_shared<Late>(some_moments(i).packed()));
      }
      std::vector<std::string> errors;
      std::vector<PartialStatistics> came;
      cuda::fetch_all(all,
                      [&](const std::vector<PartialStatistics>& copies, const std::string& found) {
                        errors.push_back(found);
                        came = copies;
                      });
      auto order = all;
      if (reversed) std::reverse(order.begin(), order.end());
      for (const auto& each : order) {
        CHECK(errors.empty());
        each->come(each == order.front() ? error : "");
      }
      CHECK(errors == std::vector<std::string>{error});
      REQUIRE(came.size() == 3);
      for (std::uint32_t i = 0; i < 3; ++i) {
        CHECK(same_bits(Moments::of(came[i]), some_moments(i)));
      }
    }
  }
}

}  // namespace gluon_syncbn::tests
