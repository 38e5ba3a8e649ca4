#include "distributed/message.h"

#include <algorithm>
#include <cstring>

#include "common/error.h"

namespace gluon_syncbn {
namespace {

using Words = ProcessGroup::Words;

// The lengths come first, because messages differ in length.
enum : std::size_t {
  kNumValues,
  kTextBytes,
  kRound,
  kUsedSlots,
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

}  // namespace

Words ProcessMessage::pack() const {
  Words words;
  const auto num_values = static_cast<std::size_t>(2 * statistics.channels);
  words.reserve(kHeaderSize + num_values + words_of(text.size()));
  words.resize(kHeaderSize);
  words[kNumValues] = static_cast<std::int64_t>(num_values);
  words[kTextBytes] = static_cast<std::int64_t>(text.size());
  words[kRound] = bits<std::int64_t>(round);
  words[kUsedSlots] = bits<std::int64_t>(used_slots);
  words[kChannels] = signature.channels;
  std::memcpy(&words[kDType], signature.dtype.data(),
              std::min(signature.dtype.size(), sizeof(Words::value_type)));
  words[kEps] = bits<std::int64_t>(signature.eps);
  words[kMomentum] = bits<std::int64_t>(signature.momentum.value_or(kNoMomentum));
  words[kCount] = statistics.count;
  append(&words, statistics.numbers.get(), num_values * sizeof(double));
  append(&words, text.data(), text.size());
  return words;
}

std::vector<ProcessMessage> ProcessMessage::unpack(const Words& words) {
  std::vector<ProcessMessage> messages;
  for (std::size_t at = 0; at < words.size();) {
    const std::int64_t* header = words.data() + at;
    const std::size_t left = words.size() - at;
    const auto num_values = left < kHeaderSize ? 0 : static_cast<std::size_t>(header[kNumValues]);
    const auto text_bytes = left < kHeaderSize ? 0 : static_cast<std::size_t>(header[kTextBytes]);
    if (left < kHeaderSize || num_values > left || num_values % 2 != 0 ||
        text_bytes > left * sizeof(*header) ||
        kHeaderSize + num_values + words_of(text_bytes) > left) {
      throw Error(kUnreadableMessage);
    }
    ProcessMessage message;
    message.round = bits<std::uint64_t>(header[kRound]);
    message.used_slots = bits<std::uint64_t>(header[kUsedSlots]);
    char dtype[sizeof(Words::value_type) + 1] = {};
    std::memcpy(dtype, &header[kDType], sizeof(Words::value_type));
    message.signature = {header[kChannels], dtype, bits<double>(header[kEps]), std::nullopt};
    const auto momentum = bits<double>(header[kMomentum]);
    if (momentum != kNoMomentum) message.signature.momentum = momentum;
    message.statistics =
        PartialStatistics::zeros(header[kCount], static_cast<std::int64_t>(num_values / 2));
    const std::int64_t* next = header + kHeaderSize;
    if (num_values > 0) {
      std::memcpy(message.statistics.numbers.get(), next, num_values * sizeof(double));
    }
    message.text.assign(reinterpret_cast<const char*>(next + num_values), text_bytes);
    messages.push_back(std::move(message));
    at += kHeaderSize + num_values + words_of(text_bytes);
  }
  return messages;
}

}  // namespace gluon_syncbn
