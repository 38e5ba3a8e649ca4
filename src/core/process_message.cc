#include "core/process_message.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace gluon_syncbn {
namespace {

using Words = ProcessGroup::Words;

// The lengths of what follows come first, so that messages of different length can be told apart.
enum : std::size_t {
  kNumValues,
  kErrorBytes,
  kRound,
  kTaken,
  kChannels,
  kDType,
  kEps,
  kMomentum,
  kCount,
  kHeaderSize
};

constexpr double kNoMomentum = -1;

template <class To, class From>
To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

std::size_t words_of(std::size_t bytes) { return (bytes + sizeof(Words::value_type) - 1) / 8; }

void append(Words* words, const void* data, std::size_t bytes) {
  const std::size_t at = words->size();
  words->resize(at + words_of(bytes));
  if (bytes > 0) std::memcpy(words->data() + at, data, bytes);
}

void join(std::vector<double>* values, const std::vector<double>& a, const std::vector<double>& b) {
  values->reserve(a.size() + b.size());
  values->assign(a.begin(), a.end());
  values->insert(values->end(), b.begin(), b.end());
}

void split(const std::vector<double>& values, std::vector<double>* a, std::vector<double>* b) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  a->assign(values.begin(), middle);
  b->assign(middle, values.end());
}

}  // namespace

Words ProcessMessage::pack() const {
  Words words;
  words.reserve(kHeaderSize + values.size() + words_of(error.size()));
  words.resize(kHeaderSize);
  words[kNumValues] = static_cast<std::int64_t>(values.size());
  words[kErrorBytes] = static_cast<std::int64_t>(error.size());
  words[kRound] = bits<std::int64_t>(round);
  words[kTaken] = bits<std::int64_t>(taken);
  words[kChannels] = agreement.channels;
  std::memcpy(&words[kDType], agreement.dtype.data(),
              std::min(agreement.dtype.size(), sizeof(Words::value_type)));
  words[kEps] = bits<std::int64_t>(agreement.eps);
  words[kMomentum] = bits<std::int64_t>(agreement.momentum.value_or(kNoMomentum));
  words[kCount] = count;
  append(&words, values.data(), values.size() * sizeof(double));
  append(&words, error.data(), error.size());
  return words;
}

std::vector<ProcessMessage> ProcessMessage::unpack(const Words& words) {
  std::vector<ProcessMessage> messages;
  for (std::size_t at = 0; at < words.size();) {
    const std::int64_t* header = words.data() + at;
    const std::size_t left = words.size() - at;
    const auto num_values = left < kHeaderSize ? 0 : static_cast<std::size_t>(header[kNumValues]);
    const auto error_bytes = left < kHeaderSize ? 0 : static_cast<std::size_t>(header[kErrorBytes]);
    if (left < kHeaderSize || num_values > left || error_bytes > left * sizeof(*header) ||
        kHeaderSize + num_values + words_of(error_bytes) > left) {
      throw Error(
          "the message of another process cannot be read; all processes should run the "
          "same version of gluon_syncbn");
    }
    ProcessMessage message;
    message.round = bits<std::uint64_t>(header[kRound]);
    message.taken = bits<std::uint64_t>(header[kTaken]);
    char dtype[sizeof(Words::value_type) + 1] = {};
    std::memcpy(dtype, &header[kDType], sizeof(Words::value_type));
    message.agreement = {header[kChannels], dtype, bits<double>(header[kEps]), std::nullopt};
    const auto momentum = bits<double>(header[kMomentum]);
    if (momentum != kNoMomentum) message.agreement.momentum = momentum;
    message.count = header[kCount];
    message.values.resize(num_values);
    const std::int64_t* next = header + kHeaderSize;
    if (num_values > 0) {
      std::memcpy(message.values.data(), next, num_values * sizeof(double));
    }
    message.error.assign(reinterpret_cast<const char*>(next + num_values), error_bytes);
    messages.push_back(std::move(message));
    at += kHeaderSize + num_values + words_of(error_bytes);
  }
  return messages;
}

void ProcessMessage::set_part(const Moments& part) {
  count = part.count;
  join(&values, part.mean, part.m2);
}

void ProcessMessage::set_part(const GradientSums& part) {
  join(&values, part.dy, part.dy_centered);
}

void ProcessMessage::get_part(Moments* part) const {
  part->count = count;
  split(values, &part->mean, &part->m2);
}

void ProcessMessage::get_part(GradientSums* part) const {
  split(values, &part->dy, &part->dy_centered);
}

}  // namespace gluon_syncbn
