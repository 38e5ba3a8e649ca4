// Each thread and CPU context has a resource manager of its own, which outlives the thread.

#include <doctest/doctest.h>

#include <future>
#include <set>
#include <thread>
#include <vector>

#include "fake_mxnet/resource.h"
#include "mxnet/c_api.h"
#include "mxnet/repairs/cpu_workspaces.h"
#include "support/refused_threads.h"

namespace gluon_syncbn::tests {
namespace {

using Manager = const ::mxnet::ResourceManager*;

constexpr int kPinned = 3;

::mxnet::Resource request(int dev_id, int dev_type = mxnet::kCPUContext) {
  return ::mxnet::ResourceManager::Get()->Request({dev_type, dev_id}, {7});
}

Manager manager(int dev_id) { return request(dev_id).manager; }

template <class Task>
auto on_another_thread(const Task& task) {
  return std::async(std::launch::async, task).get();
}

struct Workspaces {
  Workspaces() { mxnet::give_cpu_contexts_workspaces(nullptr); }
};

}  // namespace

TEST_CASE_FIXTURE(Workspaces, "cpu workspaces: a manager for each context and thread") {
  mxnet::give_cpu_contexts_workspaces(nullptr);  // once more does no harm
  const Manager own = ::mxnet::ResourceManager::Get();
  std::set<Manager> managers{manager(0), manager(1), manager(2), manager(1)};
  CHECK(managers.size() == 3);
  CHECK(manager(0) == own);
  CHECK(request(1, mxnet::kGPUContext).manager == own);
  CHECK(request(1, kPinned).manager == own);
  CHECK(request(2).id == 2);
  CHECK(request(2).request.type == 7);
  managers.insert(on_another_thread([] { return manager(1); }));
  CHECK(managers.size() == 4);
}

TEST_CASE_FIXTURE(Workspaces, "cpu workspaces: threads that live at one time share nothing") {
  constexpr int kThreads = 8;
  std::vector<std::future<Manager>> found;
  std::promise<void> all_asked;
  const auto end = all_asked.get_future().share();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    std::promise<Manager> asked;
    found.push_back(asked.get_future());
    threads.emplace_back([asked = std::move(asked), end]() mutable {
      asked.set_value(manager(3));
      end.wait();
    });
  }
  std::set<Manager> managers;
  for (auto& manager : found) managers.insert(manager.get());
  all_asked.set_value();
  for (auto& thread : threads) thread.join();
  CHECK(managers.size() == kThreads);
}

TEST_CASE_FIXTURE(Workspaces,
                  "cpu workspaces: a thread that ends leaves its managers to the next") {
  const auto use = [] { return std::set<Manager>{manager(4), manager(5)}; };
  const auto first = on_another_thread(use);
  const int before = fake_mxnet::resource_managers();
  for (int i = 0; i < 300; ++i) CHECK(on_another_thread(use) == first);
  CHECK(fake_mxnet::resource_managers() == before + 300);  // which MXNet makes for the threads
}

TEST_CASE_FIXTURE(Workspaces,
                  "cpu workspaces: no thread to make a manager is an error of the call") {
  {
    const RefusedThreads refused(0);
    CHECK_THROWS_WITH_AS(manager(10), doctest::Contains("cpu(10) got no workspaces of its own"),
                         dmlc::Error);
  }
  CHECK(manager(10) != manager(0));
}

}  // namespace gluon_syncbn::tests
