#include "kernels/name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <utility>

namespace fake_cuda {
namespace {

class Parser {
 public:
  explicit Parser(std::string text) : text_(std::move(text)) {
    const std::string nowhere = "(anonymous namespace)::";
    for (auto at = text_.find(nowhere); at != std::string::npos; at = text_.find(nowhere)) {
      text_.erase(at, nowhere.size());
    }
  }

  Name parse_function() {
    Name name = parse();
    while (at_ < text_.size() && text_[at_] != ')') {
      ++at_;
      name.parameters.push_back(parse());
    }
    return name;
  }

 private:
  /// Up to what ends an argument, or what begins the parameters of a function.
  Name parse() {
    Name name;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == ',' || c == '>' || c == ')') break;
      if (c == '(') {
        // The type of a number, as in (mxnet::OpReqType)3, or the parameters of a function.
        const std::size_t end = text_.find(')', at_);
        if (!name.head.empty() || end == std::string::npos) break;
        at_ = end + 1;
      } else if (c == '<') {
        do {
          ++at_;
          name.arguments.push_back(parse());
        } while (at_ < text_.size() && text_[at_] == ',');
        ++at_;
      } else {
        name.head += c;
        ++at_;
      }
    }
    name.head = tidy(name.head);
    return name;
  }

  /// Without namespaces, return types and const.
  static std::string tidy(std::string head) {
    const std::string whole = " const";
    for (auto at = head.find(whole); at != std::string::npos; at = head.find(whole)) {
      head.erase(at, whole.size());
    }
    if (head.compare(0, 5, "void ") == 0) head.erase(0, 5);
    const auto colons = head.rfind("::");
    if (colons != std::string::npos) head.erase(0, colons + 2);
    while (!head.empty() && head.front() == ' ') head.erase(0, 1);
    while (!head.empty() && head.back() == ' ') head.pop_back();
    return head;
  }

  std::string text_;
  std::size_t at_ = 0;
};

}  // namespace

std::string Name::element() const { return is_pointer() ? head.substr(0, head.size() - 1) : head; }

std::string readable(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
  return text ? text.get() : mangled;
}

Name parse_name(const std::string& mangled) { return Parser(readable(mangled)).parse_function(); }

}  // namespace fake_cuda
