// Random numbers: of the normal distribution, but not those of NVIDIA's generator.

#include <cstdint>
#include <random>

#include "kernels/forms.h"

namespace fake_cuda {
namespace {

/// What lies at the place of a curandStatePhilox4_32_10.
struct State {
  std::uint32_t seed;
  std::uint32_t used;
  char rest[56];
};
static_assert(sizeof(State) == 64, "as cuRAND's");

/// rand_generator_seed_kernel(states, number, seed)
Task seed(const Launch& launch) {
  auto* const states = launch.argument<State*>(0);
  return [states, given = launch.argument<std::uint32_t>(2)] { states[0] = {given, 0, {}}; };
}

/// mxnet_generic_kernel<SampleNormalKernel, types...>(threads, states, size, numbers a thread,
///     distributions, samples, means, deviations, out)
Task sample(const Launch& launch) {
  const auto& types = launch.name.arguments;
  auto* const states = launch.argument<State*>(1);
  const auto size = launch.argument<int>(2);
  const int of_each = 1 + (launch.argument<int>(5) - 1) / launch.argument<int>(4);
  const Values mean(types[6], launch.arguments[6]);
  const Values deviation(types[7], launch.arguments[7]);
  const Values out(types[8], launch.arguments[8]);
  return [=] {
    std::seed_seq sequence{states[0].seed, states[0].used++};
    std::mt19937_64 engine(sequence);
    std::normal_distribution<double> normal;
    for (int i = 0; i < size; ++i) {
      out.set(i, mean.get(i / of_each) + deviation.get(i / of_each) * normal(engine));
    }
  };
}

}  // namespace

Task random(const Launch& launch) {
  if (launch.name.head == "rand_generator_seed_kernel") return seed(launch);
  if (launch.name.head != "mxnet_generic_kernel") return {};
  return launch.name.arguments[0].head == "SampleNormalKernel" ? sample(launch) : Task();
}

}  // namespace fake_cuda
