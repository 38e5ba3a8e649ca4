#include "operator/attributes.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <locale>
#include <numeric>
#include <sstream>

#include "common/error.h"
#include "common/list_text.h"

namespace gluon_syncbn::op {
namespace {

// Values come from symbol files that anyone may have written.
constexpr int kMaxDevices = 4096;
constexpr const char* kCountOfDevices = "a whole number from 1 to 4096, or None if not known yet";
constexpr std::size_t kMaxKeyLength = 1024;
constexpr const char* kShort = "at most 1024 characters long";

constexpr std::size_t kMaxShownLength = 128;
constexpr int kNoLimit = std::numeric_limits<int>::max();

/// Makes `text` short, and ASCII without control characters, for a message. Python
/// decodes messages as UTF-8, and would show an error of its own for anything else.
std::string shown(const std::string& text) {
  std::string result;
  for (const char character : text.substr(0, kMaxShownLength)) {
    const auto byte = static_cast<unsigned char>(character);
    result += byte < 0x20 || byte > 0x7e ? '?' : character;
  }
  return text.size() > kMaxShownLength ? result + "..." : result;
}

/// Returns the name of a Gluon layer, whose key is its name, "_", a token of 32 hexadecimal digits,
/// and sometimes "@" and devices. Every other key is a name.
std::string name_of(const std::string& key) {
  constexpr std::size_t kTokenLength = 32;
  const std::size_t end = std::min(key.rfind('@'), key.size());
  if (end <= kTokenLength + 1) return key;
  const std::size_t begin = end - kTokenLength;
  const auto other = std::min(key.find_first_not_of("0123456789abcdef", begin), key.size());
  return key[begin - 1] == '_' && other >= end ? key.substr(0, begin - 1) : key;
}

[[noreturn]] void reject(const std::string& layer, const std::string& name,
                         const std::string& value, const std::string& expected) {
  throw Error(layer + ": attribute " + name + "='" + shown(value) + "' should be " + expected);
}

bool parse_number(const std::string& text, int* value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return result.ec == std::errc() && result.ptr == end;
}

bool parse_number(const std::string& text, double* value) {
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  stream >> *value;
  return !stream.fail() && stream.peek() == std::istringstream::traits_type::eof() &&
         std::isfinite(*value);
}

/// Parses a whole number from `least` to `most`.
bool parse_count(const std::string& text, int least, std::size_t* value, int most = kNoLimit) {
  int number = 0;
  if (!parse_number(text, &number) || number < least || number > most) return false;
  *value = static_cast<std::size_t>(number);
  return true;
}

bool parse_flag(const std::string& text, bool* value) {
  *value = text == "True" || text == "true" || text == "1";
  return *value || text == "False" || text == "false" || text == "0";
}

/// Attributes such as __lr_mult__ or __ctx_group__, which MXNet lets every node carry.
bool is_hidden(const std::string& name) {
  return name.size() > 4 && name.compare(0, 2, "__") == 0 &&
         name.compare(name.size() - 2, 2, "__") == 0;
}

/// An attribute of a later version may have a meaning that this version does not know.
void require_known_version(const std::string& layer, const std::string& value) {
  int version = 0;
  if (!parse_number(value, &version) || version < 1) {
    reject(layer, "version", value, "a whole number of at least 1");
  }
  if (version > Attributes::kVersion) {
    throw Error(layer + ": attribute version=" + shown(value) +
                " comes from a later gluon_syncbn; this is " GLUON_SYNCBN_VERSION
                ", which reads up to version " +
                std::to_string(Attributes::kVersion) +
                ". Install the later one, or let it write plain BatchNorm "
                "(gluon_syncbn.export)");
  }
}

bool parse_momentum(const std::string& text, std::optional<double>* momentum) {
  *momentum = std::nullopt;
  if (text == "None") return true;
  double value = 0;
  if (!parse_number(text, &value) || value < 0 || value > 1) return false;
  *momentum = value;
  return true;
}

/// "4, 5" or, as Python writes tuples and lists, "(4, 5)" or "[4, 5]".
bool parse_ids(const std::string& text, std::vector<int>* ids) {
  std::string list;
  for (const char character : text) {
    if (character != ' ') list += character;
  }
  if (list.size() > 1 && ((list.front() == '(' && list.back() == ')') ||
                          (list.front() == '[' && list.back() == ']'))) {
    list = list.substr(1, list.size() - 2);
  }
  std::istringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) {
    int id = 0;
    const bool valid = parse_number(item, &id) && id >= 0;
    if (!valid || std::find(ids->begin(), ids->end(), id) != ids->end()) return false;
    ids->push_back(id);
    if (ids->size() > kMaxDevices) return false;
  }
  return !ids->empty();
}

bool parse_act_type(const std::string& text, Attributes* attributes) {
  std::string names;
  for (const ActTypeTraits& each : kActTypes) {
    if (text == each.name) {
      attributes->activation.type = each.type;
      return true;
    }
    if (each.type != ActType::kNone) append_item(&names, "'" + std::string(each.name) + "'");
  }
  reject(attributes->layer(), "act_type", text, names + " or None");
}

bool parse_unused_count(const std::string& text, Attributes* /*attributes*/) {
  std::size_t count = 0;
  return parse_count(text, 0, &count);
}

struct Known {
  const char* name;
  const char* expected;
  bool (*parse)(const std::string& text, Attributes* attributes);
};

constexpr const char* kFlag = "True or False";
constexpr const char* kNotNegative = "a finite number, 0 or greater";
constexpr const char* kCount = "a whole number of at least 0";

/// All attributes but `version`, which comes first.
const Known kKnown[] = {
    {"eps", kNotNegative,
     [](const auto& text, auto* a) { return parse_number(text, &a->eps) && a->eps >= 0; }},
    {"momentum", "a number from 0 to 1, or None for the average over all batches",
     [](const auto& text, auto* a) { return parse_momentum(text, &a->momentum); }},
    {"fix_gamma", kFlag, [](const auto& text, auto* a) { return parse_flag(text, &a->fix_gamma); }},
    {"use_global_stats", kFlag,
     [](const auto& text, auto* a) { return parse_flag(text, &a->use_global_stats); }},
    {"axis", "a whole number",
     [](const auto& text, auto* a) { return parse_number(text, &a->axis); }},
    {"num_devices", kCountOfDevices,
     [](const auto& text, auto* a) {
       a->num_devices_known = text != "None";
       return text == "None" || parse_count(text, 1, &a->num_devices, kMaxDevices);
     }},
    {"sync_group_size", "a whole number of at least 1 that divides num_devices, or None",
     [](const auto& text, auto* a) {
       return text == "None" || parse_count(text, 1, &a->sync_group_size.emplace());
     }},
    {"device_ids", "different whole numbers of at least 0, separated by commas",
     [](const auto& text, auto* a) { return parse_ids(text, &a->device_ids); }},
    {"key", kShort, [](const auto& text, auto*) { return text.size() <= kMaxKeyLength; }},
    {"scope", "'key' or 'graph'",
     [](const auto& text, auto* a) {
       a->scope = text == "graph" ? Scope::kGraph : Scope::kKey;
       return text == "key" || text == "graph";
     }},
    // Only files of earlier releases have the next two attributes. They have no effect.
    {"trace", kCount, parse_unused_count},
    {"use", kCount, parse_unused_count},
    {"process_set", "the number of a process set of Horovod, or -1 for none",
     [](const auto& text, auto* a) {
       return parse_number(text, &a->process_set) && a->process_set >= Attributes::kNoProcessSet;
     }},
    {"across", kShort,
     [](const auto& text, auto* a) {
       a->across = text;
       return text.size() <= kMaxKeyLength;
     }},
    {"act_type", nullptr, parse_act_type},  // which itself lists what is expected
    {"slope", kNotNegative,
     [](const auto& text, auto* a) {
       return parse_number(text, &a->activation.slope) && a->activation.slope >= 0;
     }},
    {"shortcut", kFlag, [](const auto& text, auto* a) { return parse_flag(text, &a->shortcut); }},
    {"inplace", kFlag, [](const auto& text, auto* a) { return parse_flag(text, &a->inplace); }},
};

void parse_one(const std::string& layer, const std::string& name, const std::string& value,
               Attributes* attributes) {
  std::string names;
  for (const Known& known : kKnown) {
    append_item(&names, known.name);
    if (name != known.name) continue;
    if (!known.parse(value, attributes)) reject(layer, name, value, known.expected);
    return;
  }
  throw Error(layer + ": unknown attribute " + shown(name) + "; known are " + names +
              " and version");
}

}  // namespace

Attributes Attributes::parse(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Attributes attributes;
  // The key comes first, because all messages name the layer by it.
  for (const auto& [name, value] : pairs) {
    if (name == "key") attributes.key = value;
  }
  const std::string layer = attributes.layer();
  // The version comes next, because its error explains unknown attributes.
  for (const auto& [name, value] : pairs) {
    if (name == "version") require_known_version(layer, value);
  }
  for (const auto& [name, value] : pairs) {
    if (name == "__force_mirroring__" && !parse_flag(value, &attributes.is_mirrored)) {
      reject(layer, name, value, kFlag);
    }
    if (name == "__subgraph_name__") attributes.is_in_body = true;
    if (name == "version" || is_hidden(name)) continue;
    parse_one(layer, name, value, &attributes);
  }
  if (!traits_of(attributes.activation.type).has_slope) attributes.activation.slope = 0;
  attributes.check_combinations();
  if (attributes.sync_group_size && attributes.device_ids.empty()) {
    attributes.device_ids.resize(attributes.num_devices);
    std::iota(attributes.device_ids.begin(), attributes.device_ids.end(), 0);
  }
  if (attributes.across.empty()) attributes.across = attributes.key;
  return attributes;
}

std::string Attributes::layer() const { return kLayer + shown(name_of(key)) + "'"; }

std::optional<DeviceGroup> Attributes::group_of(int device_id) const {
  const auto found = std::find(device_ids.begin(), device_ids.end(), device_id);
  if (found == device_ids.end()) return std::nullopt;
  const auto size = static_cast<std::ptrdiff_t>(group_size());
  const auto number = (found - device_ids.begin()) / size;
  const auto first = device_ids.begin() + number * size;
  return DeviceGroup{static_cast<std::size_t>(number), {first, first + size}};
}

std::string Attributes::device_list() const { return number_list(device_ids); }

std::string Attributes::layer(const DeviceGroup& group) const {
  return layer() + " group " + std::to_string(group.number) + " of " +
         std::to_string(num_devices / group_size()) + " (device ids " +
         number_list(group.device_ids) + ")";
}

std::size_t Attributes::axis_of(std::size_t ndim) const {
  const int dims = static_cast<int>(ndim);
  if (axis < -dims || axis >= dims) {
    throw Error(layer() + ": attribute axis=" + std::to_string(axis) + " should be from " +
                std::to_string(-dims) + " to " + std::to_string(dims - 1) + " for data of " +
                std::to_string(dims) + " dimensions");
  }
  return static_cast<std::size_t>(axis < 0 ? axis + dims : axis);
}

}  // namespace gluon_syncbn::op
