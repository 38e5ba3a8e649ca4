#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "norm/variants.h"
#include "operator/attributes.h"
#include "support/seeds.h"

namespace gluon_syncbn::tests {
namespace {

using op::Scope;
using Pairs = std::vector<std::pair<std::string, std::string>>;

/// The message of what `pairs` is refused with; "" where it is accepted.
std::string error_of(const Pairs& pairs) {
  try {
    op::Attributes::parse(pairs);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

/// What backward reads, in words.
std::string reads_of(const op::Attributes& attributes) {
  const auto reads = gluon_syncbn::reads_of(attributes.dz_from());
  std::string words;
  for (const auto& [read, word] : {std::pair{reads.data, "data"}, std::pair{reads.beta, "beta"},
                                   std::pair{reads.output, "output"}}) {
    if (read) words += (words.empty() ? "" : " ") + std::string(word);
  }
  return words;
}

/// Attributes of no sense, drawn from the seed alone.
class Garbage {
 public:
  explicit Garbage(std::uint32_t seed) : generator_(seed) {}

  Pairs pairs() {
    static const std::vector<std::string> names = {
        "eps",      "momentum",    "fix_gamma",       "use_global_stats",
        "axis",     "num_devices", "sync_group_size", "device_ids",
        "key",      "scope",       "act_type",        "slope",
        "shortcut", "version"};
    Pairs result;
    for (std::size_t i = up_to(6); i > 0; --i) {
      result.emplace_back(up_to(9) == 0 ? value() : names[up_to(names.size() - 1)], value());
    }
    return result;
  }

  std::string value() {
    static const std::vector<std::string> numbers = {
        "0",    "1",     "-1",         "4",          "0.9",         "1e-5",
        "None", "1e309", "-1e309",     "1e-999",     "nan",         "inf",
        "-inf", "0x10",  "2147483647", "2147483648", "-2147483649", "99999999999999999999999999",
        "+1",   " 1",    "1 ",         "1,5",        "True",        "False",
        "true", "graph", "key",        "",           "-",           ".",
        "e5",   "1e",    "--1",        "2",          "0,1,2,3",     "(7, 5)",
        "[,]",  "3,3",   "relu",       "elu"};
    std::string text = numbers[up_to(numbers.size() - 1)];
    switch (up_to(9)) {
      case 0:
        return bytes(up_to(40));
      case 1:
        return text + bytes(up_to(3));
      case 2:
        return bytes(up_to(3)) + text;
      case 3:
        return std::string(1 + up_to(3000), static_cast<char>(up_to(255)));
      case 4:
        return std::string(up_to(400), '9') + text;
      case 5:
        return text + '\0' + text;
      default:
        return text;
    }
  }

 private:
  std::size_t up_to(std::size_t limit) { return generator_() % (limit + 1); }

  /// Any bytes: control characters, zeros, and parts of UTF-8 that make no sense.
  std::string bytes(std::size_t size) {
    std::string text;
    for (std::size_t i = 0; i < size; ++i) text += static_cast<char>(up_to(255));
    return text;
  }

  std::mt19937 generator_;
};

/// Whether a terminal, a log or Python (which decodes messages as UTF-8) can take it.
bool is_printable(const std::string& text) {
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte > 0x7e) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("attributes: garbage is refused with a short message, or means what it says") {
  std::size_t accepted = 0;
  const auto cases = seeds(0, 60000);
  for (const std::uint32_t seed : cases) {
    CAPTURE(seed);
    const Pairs pairs = Garbage(seed).pairs();
    try {
      const op::Attributes attributes = op::Attributes::parse(pairs);
      ++accepted;
      REQUIRE(attributes.eps >= 0);
      REQUIRE((!attributes.momentum || (*attributes.momentum >= 0 && *attributes.momentum <= 1)));
      REQUIRE((attributes.num_devices >= 1 && attributes.num_devices <= 4096));
      REQUIRE(attributes.key.size() <= 1024);
      REQUIRE(attributes.num_devices % attributes.group_size() == 0);
      if (attributes.sync_group_size) {
        REQUIRE(attributes.device_ids.size() == attributes.num_devices);
        const auto group = attributes.group_of(attributes.device_ids.back());
        REQUIRE(group);
        REQUIRE(group->device_ids.size() == attributes.group_size());
      }
      REQUIRE((attributes.num_devices == 1 || attributes.scope == Scope::kGraph ||
               !attributes.key.empty()));
      REQUIRE(is_printable(attributes.layer()));
      try {
        const std::size_t axis = attributes.axis_of(4);
        REQUIRE(axis < 4);
      } catch (const Error& error) {
        REQUIRE(is_printable(error.what()));
      }
    } catch (const Error& error) {
      const std::string message = error.what();
      CAPTURE(message);
      REQUIRE(message.find("SyncBatchNorm '") == 0);
      REQUIRE(message.size() < 2000);
      REQUIRE(is_printable(message));
    }
  }
  if (cases.size() < 1000) return;
  CHECK(accepted > cases.size() / 20);
  CHECK(accepted < cases.size() / 2);
}

TEST_CASE("attributes: what came and what was expected is named") {
  struct Case {
    std::string name;
    std::vector<std::string> values;
    std::string expected;
  };
  const std::string not_negative = "a finite number, 0 or greater";
  const Case cases[] = {
      {"eps", {"-1"}, not_negative},
      {"num_devices",
       {"0", "4097", "2.5"},
       "a whole number from 1 to 4096, or None if not known yet"},
      {"momentum",
       {"none", "", "-0.1", "1.1", "nan", "None "},
       "a number from 0 to 1, or None for the average over all batches"},
      {"act_type", {"gelu"}, "'relu', 'leaky', 'elu' or None"},
      {"slope", {"-0.1", "nan", "inf", "", "None"}, not_negative},
      {"shortcut", {"data"}, "True or False"},
      {"fix_gamma", {"maybe"}, "True or False"},
      {"sync_group_size",
       {"0", "-1", "2.0", "two", ""},
       "a whole number of at least 1 that divides num_devices, or None"},
      {"device_ids",
       {"", "()", ",", "0,1,1,3", "0;1;2;3", "0,1,2,-3", "a,b,c,d"},
       "different whole numbers of at least 0, separated by commas"},
      {"version", {"", "0", "-1", "1.0", "0.1.0", "one"}, "a whole number of at least 1"},
  };
  for (const auto& [name, values, expected] : cases) {
    for (const std::string& value : values) {
      CHECK(error_of({{"key", "bn"}, {name, value}}) ==
            "SyncBatchNorm 'bn': attribute " + name + "='" + value + "' should be " + expected);
    }
  }
  CHECK(error_of({{"key", std::string("a\0b\x1b[31m\xff!\n", 11)}, {"axis", "one"}}) ==
        "SyncBatchNorm 'a?b?[31m?!?': attribute axis='one' should be a whole number");
  CHECK(error_of({{"key", std::string(2000, 'k')}}).size() < 400);
}

TEST_CASE("attributes: messages name a Gluon layer without the token of its key") {
  const std::string token = "0123456789abcdef0123456789abcdef";
  const auto name = [](const std::string& key) {
    return op::Attributes::parse({{"key", key}}).layer();
  };
  CHECK(name("net_batchnorm0_" + token) == "SyncBatchNorm 'net_batchnorm0'");
  CHECK(name("net_batchnorm0_" + token + "@2,3") == "SyncBatchNorm 'net_batchnorm0'");
  CHECK(name("net_batchnorm0_" + token + "@") == "SyncBatchNorm 'net_batchnorm0'");
  const std::string others[] = {token, "_" + token, "bn_" + token.substr(1), "bn_x" + token,
                                "bn@0"};
  for (const std::string& key : others) CHECK(name(key) == "SyncBatchNorm '" + key + "'");
}

TEST_CASE("attributes: momentum is a number, or None for the average over all batches") {
  CHECK(op::Attributes::parse({}).momentum == 0.9);
  CHECK(op::Attributes::parse({{"momentum", "0"}}).momentum == 0.0);
  CHECK(!op::Attributes::parse({{"momentum", "None"}}).momentum);
}

TEST_CASE("attributes: an activation and a shortcut") {
  const auto plain = op::Attributes::parse({});
  CHECK(plain.activation.type == ActType::kNone);
  CHECK_FALSE(plain.shortcut);
  CHECK(reads_of(plain) == "data");
  const auto relu = op::Attributes::parse({{"slope", "0.5"}, {"act_type", "relu"}});
  CHECK(relu.activation.type == ActType::kRelu);
  CHECK(relu.activation.slope == 0);
  CHECK(reads_of(relu) == "data beta");
  const auto leaky = op::Attributes::parse({{"act_type", "leaky"}, {"shortcut", "True"}});
  CHECK(leaky.activation.type == ActType::kLeaky);
  CHECK(leaky.activation.slope == 0.25);
  CHECK(reads_of(leaky) == "data output");
  const auto elu = op::Attributes::parse({{"act_type", "elu"}, {"slope", "1"}});
  CHECK(elu.activation.type == ActType::kElu);
  CHECK(elu.activation.slope == 1);
  CHECK(reads_of(op::Attributes::parse({{"act_type", "None"}, {"shortcut", "1"}})) == "data");
  CHECK(reads_of(op::Attributes::parse({{"inplace", "True"}})) == "beta output");
  CHECK(reads_of(op::Attributes::parse({{"inplace", "True"}, {"act_type", "elu"}})) ==
        "beta output");
}

TEST_CASE("attributes: groups are cut from the devices in their order") {
  const auto groups = op::Attributes::parse({{"key", "bn"},
                                             {"num_devices", "6"},
                                             {"sync_group_size", "2"},
                                             {"device_ids", "(4, 9, 0, 1, 8, 3)"}});
  const std::pair<int, std::size_t> expected[] = {{4, 0}, {9, 0}, {0, 1}, {1, 1}, {8, 2}, {3, 2}};
  for (const auto& [id, number] : expected) {
    CAPTURE(id);
    REQUIRE(groups.group_of(id));
    CHECK(groups.group_of(id)->number == number);
  }
  CHECK(groups.group_of(1)->device_ids == std::vector<int>{0, 1});
  CHECK(groups.layer(*groups.group_of(1)) == "SyncBatchNorm 'bn' group 1 of 3 (device ids 0, 1)");
  CHECK_FALSE(groups.group_of(2));

  const auto counted =
      op::Attributes::parse({{"key", "bn"}, {"num_devices", "4"}, {"sync_group_size", "4"}});
  CHECK(counted.group_of(3)->device_ids == std::vector<int>{0, 1, 2, 3});
  CHECK_FALSE(counted.group_of(4));
  CHECK(op::Attributes::parse({{"sync_group_size", "None"}}).group_size() == 1);
}

TEST_CASE("attributes: groups that do not come out even are refused") {
  const auto error = [](const std::string& size, const std::string& ids) {
    return error_of(
        {{"key", "bn"}, {"num_devices", "4"}, {"sync_group_size", size}, {"device_ids", ids}});
  };
  CHECK(error("3", "0,1,2,3") ==
        "SyncBatchNorm 'bn': sync_group_size=3 should divide num_devices=4");
  CHECK(error("8", "0,1,2,3") ==
        "SyncBatchNorm 'bn': sync_group_size=8 should divide num_devices=4");
  CHECK(error("2", "0,1,2") ==
        "SyncBatchNorm 'bn': attribute device_ids has 3 devices where num_devices=4");
}

TEST_CASE("attributes: what a later version has written is refused before what it may mean") {
  const std::string now = std::to_string(op::Attributes::kVersion);
  const std::string later = std::to_string(op::Attributes::kVersion + 1);
  CHECK(error_of({{"version", now}}).empty());
  CHECK(error_of({{"epsilon", "1"}, {"version", later}, {"key", "bn"}}) ==
        "SyncBatchNorm 'bn': attribute version=" + later +
            " comes from a later gluon_syncbn; this is " GLUON_SYNCBN_VERSION
            ", which reads up to version " +
            now + ". Install the later one, or let it write plain BatchNorm (gluon_syncbn.export)");
  CHECK(error_of({{"epsilon", "1"}, {"version", now}, {"key", "bn"}})
            .find("SyncBatchNorm 'bn': unknown attribute epsilon") == 0);
}

TEST_CASE("attributes: hidden ones, of which the operator reads two") {
  for (const char* value : {"True", "1", "true"}) {
    CHECK(op::Attributes::parse({{"__force_mirroring__", value}}).is_mirrored);
  }
  for (const char* value : {"False", "0", "false"}) {
    CHECK(!op::Attributes::parse({{"__force_mirroring__", value}}).is_mirrored);
  }
  CHECK(error_of({{"key", "bn"}, {"__force_mirroring__", "what"}}) ==
        "SyncBatchNorm 'bn': attribute __force_mirroring__='what' should be True or False");
  CHECK(op::Attributes::parse({{"__subgraph_name__", "foreach0"}}).is_in_body);
  CHECK(error_of({{"key", "bn"}, {"__lr_mult__", "2"}}).empty());
}

}  // namespace gluon_syncbn::tests
