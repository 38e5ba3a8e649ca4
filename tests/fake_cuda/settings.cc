#include "settings.h"

#include <cstdlib>
#include <map>

#include "die.h"

namespace fake_cuda {
namespace {

long from_environment(const std::string& name, long otherwise) {
  const char* text = std::getenv(("FAKE_CUDA_" + name).c_str());
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end) die("FAKE_CUDA_" + name + " is '" + text + "': expected a number");
  return value;
}

using Table = std::map<std::string, Setting*>;

Table& table() {
  static Table& all = *new Table;
  return all;
}

void add(const char* name, Setting* setting, long otherwise) {
  *setting = from_environment(name, otherwise);
  table()[name] = setting;
}

}  // namespace

Settings& settings() {
  static Settings& all = *[] {
    auto* made = new Settings;
    add("DEVICES", &made->devices, 8);
    add("VERSION", &made->version, 11020);
    add("MEMORY", &made->memory, 4096);
    add("DELAY", &made->delay, 100);
    add("SEED", &made->seed, 1);
    add("PEERS", &made->peers, 1);
    add("TELL", &made->tell, 0);
    add("IGNORE_EVENT_SYNCHRONIZE", &made->ignore_event_synchronize, 0);
    add("IGNORE_STREAM_WAIT", &made->ignore_stream_wait, 0);
    add("IGNORE_STREAM_SYNCHRONIZE", &made->ignore_stream_synchronize, 0);
    return made;
  }();
  return all;
}

Setting& setting(const std::string& name) {
  settings();
  const auto found = table().find(name);
  if (found == table().end()) die("no setting is called " + name);
  return *found->second;
}

}  // namespace fake_cuda
