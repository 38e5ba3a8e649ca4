// Random numbers: of the distributions that MXNet asks for, but not those of NVIDIA's generator.

#include <cstring>
#include <random>
#include <string>

#include "kernels/forms.h"

namespace fake_cuda {
namespace {

/// What lies at the place of a curandStatePhilox4_32_10.
struct State {
  std::uint32_t seed;
  std::uint32_t sequence;
  std::uint32_t used;
  char rest[52];
};
static_assert(sizeof(State) == 64, "as cuRAND's");

/// rand_generator_seed_kernel(states, number, seed)
Task seed(const Launch& launch) {
  auto* const states = launch.argument<State*>(0);
  const auto number = launch.argument<int>(1);
  const auto given = launch.argument<std::uint32_t>(2);
  return [=] {
    for (int i = 0; i < number; ++i) states[i] = {given, static_cast<std::uint32_t>(i), 0, {}};
  };
}

/// mxnet_generic_kernel<sampler, types...>(threads, states, size, numbers a thread, distributions,
///     samples, first parameters, second parameters, out)
template <class Draw>
Task sample(const Launch& launch, const Draw& draw) {
  const auto& types = launch.name.arguments;
  const auto threads = launch.argument<int>(0);
  auto* const states = launch.argument<State*>(1);
  const auto size = launch.argument<int>(2);
  const auto step = launch.argument<int>(3);
  const auto distributions = launch.argument<int>(4);
  const auto samples = launch.argument<int>(5);
  const Values first(types[6], launch.arguments[6]);
  const Values second(types[7], launch.arguments[7]);
  const Values out(types[8], launch.arguments[8]);
  return [=] {
    const int of_each = 1 + (samples - 1) / distributions;
    for (int thread = 0; thread < threads; ++thread) {
      State& state = states[thread];
      std::seed_seq sequence{state.seed, state.sequence, state.used++};
      std::mt19937_64 engine(sequence);
      for (int i = thread * step; i < (thread + 1) * step && i < size; ++i) {
        out.set(i, draw(engine, first.get(i / of_each), second.get(i / of_each)));
      }
    }
  };
}

}  // namespace

Task random(const Launch& launch) {
  if (launch.name.head == "rand_generator_seed_kernel") return seed(launch);
  if (launch.name.head != "mxnet_generic_kernel") return {};
  const std::string& op = launch.name.arguments[0].head;
  if (op == "SampleUniformKernel") {
    return sample(launch, [](auto& engine, double low, double high) {
      return std::uniform_real_distribution<double>(low, high)(engine);
    });
  }
  if (op == "SampleNormalKernel") {
    return sample(launch, [](auto& engine, double mean, double deviation) {
      return std::normal_distribution<double>(mean, deviation)(engine);
    });
  }
  return {};
}

}  // namespace fake_cuda
