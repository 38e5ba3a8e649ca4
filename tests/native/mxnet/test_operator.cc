// One operator after the other, with a backend whose device is done when the test says so.

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mxnet/operator.h"
#include "support/host_library.h"

namespace gluon_syncbn::tests {
namespace {

using Done = std::function<void(const std::string& error)>;

struct Message : RemotePart {
  void fetch(Then then) const override { then({}, "not here"); }
  std::shared_ptr<const RemotePart> with(const FlatPart&) const override { return nullptr; }
};

class FakeBackend : public Backend {
 public:
  bool keeps_caller_busy() const override { return false; }
  Moments moments(const Data&, const void*) override {
    const auto message = std::make_shared<const Message>();
    message_ = message;
    Moments moments;
    moments.count = 1;
    moments.remote = {message};
    return moments;
  }
  StatisticsPtr batch_statistics(const Data&, const Moments&, double) override {
    return std::make_shared<const Statistics>();
  }
  StatisticsPtr running_statistics(const Data&, const void*, const void*, double) override {
    return std::make_shared<const Statistics>();
  }
  void move_averages(const Data&, const Statistics&, const RunningStatistics&) override {
    if (!fault.empty()) throw Error(fault);
  }
  void normalize(const Data&, const void*, const Statistics&, const void*, const void*, Write,
                 void*, const Update&) override {
    if (!fault.empty()) throw Error(fault);
  }
  GradientSums gradient_sums(const Data&, const void*, const void*, const Statistics&) override {
    return {};
  }
  void gradients(const Data&, const void*, const void*, const Statistics&, const GradientSums&,
                 const GradientSums*, std::int64_t, const void*, const Gradients&) override {}
  void finish(Done done) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = std::move(done);
    changed_.notify_all();
  }

  /// The device has done its work. False where nobody has asked it to tell.
  bool be_done() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [this] { return done_ != nullptr; })) {
      return false;
    }
    std::exchange(done_, nullptr)("");
    return true;
  }
  bool message_is_kept() const { return !message_.expired(); }

  std::string fault;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Done done_;
  std::weak_ptr<const Message> message_;
};

mxnet::NDArray make_array(const std::vector<std::int64_t>& shape) {
  mxnet::NDArrayHandle handle = nullptr;
  mxnet::check(mxnet::api().NDArrayCreateEx64(shape.data(), static_cast<int>(shape.size()),
                                              mxnet::kCPUContext, 0, 0, mxnet::kFloat32, &handle),
               "MXNDArrayCreateEx64");
  return mxnet::NDArray(handle);
}

/// One layer on two devices.
struct Layer {
  Layer() {
    load_host();
    mxnet::Attributes attributes;
    attributes.num_devices = 2;
    attributes.key = "layer";
    for (int i = 0; i < 2; ++i) {
      backends.push_back(std::make_shared<FakeBackend>());
      devices.push_back({"cpu", i});
    }
    const auto meeting = std::make_shared<Meeting>("layer", 2);
    const auto pending = std::make_shared<mxnet::PendingForwards>();
    for (std::size_t i = 0; i < 2; ++i) {
      operators.push_back(std::make_shared<mxnet::Operator>(
          attributes, devices[i], backends[i], meeting, pending, mxnet::UpdatePlace{}));
    }
  }

  void forward(std::size_t device) {
    std::vector<mxnet::NDArray> arrays;
    for (const bool is_data : {true, false, false, true, false, false}) {
      arrays.push_back(
          make_array(is_data ? std::vector<std::int64_t>{2, 3, 4} : std::vector<std::int64_t>{3}));
    }
    operators[device]->forward(std::move(arrays), mxnet::kWrite, true);
  }

  std::vector<std::shared_ptr<FakeBackend>> backends;
  std::vector<Device> devices;
  std::vector<std::shared_ptr<mxnet::Operator>> operators;
};

template <class Condition>
bool comes_true(const Condition& condition) {
  for (int i = 0; i < 60000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

}  // namespace

TEST_CASE("operator: a device that fails midway keeps its peers' messages until it is done") {
  Layer layer;
  layer.backends[1]->fault = "no luck";
  layer.forward(0);
  layer.forward(1);
  REQUIRE(layer.backends[0]->be_done());
  // Kernels of the other one may still read what device 0 has written.
  for (int i = 0; i < 50; ++i) {
    CHECK(layer.backends[0]->message_is_kept());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  REQUIRE(layer.backends[1]->be_done());
  for (const auto& backend : layer.backends) {
    CHECK(comes_true([&] { return !backend->message_is_kept(); }));
  }
}

}  // namespace gluon_syncbn::tests
