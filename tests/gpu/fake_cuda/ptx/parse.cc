#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "control.h"
#include "ptx/instructions.h"
#include "ptx/kernel.h"

namespace fake_cuda::ptx {
namespace {

std::string trimmed(const std::string& text) {
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  const auto begin = std::find_if_not(text.begin(), text.end(), is_space);
  const auto end = std::find_if_not(text.rbegin(), text.rend(), is_space).base();
  return begin < end ? std::string(begin, end) : "";
}

class Parser {
 public:
  explicit Parser(Kernel* kernel) : kernel_(*kernel) {}

  /// A statement without its semicolon, with the labels and braces before it.
  void add(std::string statement) {
    std::smatch match;
    while (std::regex_search(statement, match, label_)) {
      if (match[1].matched) labels_[match[1]] = kernel_.instructions.size();
      statement = match.suffix().str();
    }
    statement = trimmed(statement);
    if (std::regex_match(statement, match, shared_)) {
      const std::size_t alignment = std::stoul(match[1]);
      kernel_.shared_bytes = (kernel_.shared_bytes + alignment - 1) / alignment * alignment;
      symbols_[match[2]] = kernel_.shared_bytes;
      kernel_.shared_bytes += std::stoul(match[3]);
    } else if (std::regex_match(statement, match, declaration_)) {
      each(match[1], [this](const std::smatch& name) { declared_.insert(name[1]); });
    } else if (!statement.empty() && statement[0] != '.') {  // a hint to the compiler
      add_instruction(statement);
    }
  }
  void add_parameter(const std::string& name) { symbols_[name] = 0; }
  void finish() {
    for (const auto& [instruction, label] : branches_) {
      kernel_.instructions[instruction].target = labels_.at(label);
    }
    kernel_.registers = registers_.size();
  }

 private:
  void add_instruction(const std::string& statement) {
    std::smatch match;
    if (!std::regex_match(statement, match, instruction_)) die("not PTX: " + statement);
    Instruction instruction{statement};
    if (match[2].matched) {
      instruction.is_conditional = true;
      instruction.is_negated = match[1].length() > 0;
      instruction.condition = register_of(match[2]);
    }
    const std::string name = match[3];
    const std::string operands = match[4];
    if (name.rfind("bra", 0) == 0) {
      branches_.emplace_back(kernel_.instructions.size(), operands);
    } else {
      each(operands, [&](const std::smatch& operand) {
        instruction.operands.push_back(operand_of(operand[1]));
        if (operand[2].matched) instruction.offset = std::stoll(operand[2]);
      });
    }
    instruction.run = find_instruction(name + (operands[0] == '{' ? " {}" : ""));
    if (!instruction.run) die("an instruction that the fake CUDA does not know: " + statement);
    kernel_.instructions.push_back(std::move(instruction));
  }

  template <class Function>
  void each(const std::string& operands, const Function& function) {
    const std::sregex_iterator end;
    for (std::sregex_iterator i(operands.begin(), operands.end(), operand_); i != end; ++i) {
      function(*i);
    }
  }
  /// Numbered registers are declared together, as %r<10>.
  bool is_register(const std::string& name) const {
    return registers_.count(name) || declared_.count(name) ||
           declared_.count(name.substr(0, name.find_last_not_of("0123456789") + 1));
  }
  Operand register_of(const std::string& name) {
    return {true, registers_.emplace(name, registers_.size()).first->second};
  }
  Operand operand_of(const std::string& text) {
    if (is_register(text)) return register_of(text);
    if (const auto symbol = symbols_.find(text); symbol != symbols_.end()) {
      return {false, symbol->second};
    }
    if (text[0] == '0' && (text[1] == 'f' || text[1] == 'd')) {
      return {false, std::stoull(text.substr(2), nullptr, 16)};
    }
    if (text[0] == '-') return {false, static_cast<std::uint64_t>(std::stoll(text))};
    if (!std::isdigit(static_cast<unsigned char>(text[0]))) die("an unknown symbol: " + text);
    return {false, std::stoull(text)};
  }

  const std::regex label_{R"(^\s*(?:([$\w]+):|[{}]))"};
  const std::regex shared_{R"(\.shared \.align (\d+) \.b8 (\S+)\[(\d+)\])"};
  const std::regex declaration_{R"(\.reg \.\w+\s+([^]*))"};
  const std::regex instruction_{R"((?:@(!?)(%\w+)\s+)?([\w.]+)\s*([^]*))"};
  const std::regex operand_{R"(([%\w$.-]+)(?:<\d+>|\+(-?\d+))?)"};
  Kernel& kernel_;
  std::map<std::string, std::uint64_t> symbols_;
  std::set<std::string> declared_;
  std::map<std::string, std::uint64_t> registers_{{"%tid.x", kThreadIndex},
                                                  {"%ctaid.x", kBlockIndex}};
  std::map<std::string, std::size_t> labels_;
  std::vector<std::pair<std::size_t, std::string>> branches_;
};

}  // namespace

bool is_ptx(const std::string& code) { return code.find("\n.version ") != std::string::npos; }

Kernel parse(const std::string& text) {
  const std::regex comment("//[^\n]*");
  const std::regex entry(
      R"(\.entry (\w+)\(\s*\.param \.align \d+ \.b8 (\w+)\[(\d+)\]\s*\)\s*\.maxntid (\d+)[^{]*\{)");
  const std::string code = std::regex_replace(text, comment, "");
  std::smatch match;
  if (!std::regex_search(code, match, entry)) die("PTX has no kernel with one parameter");
  Kernel kernel{match[1], std::stoul(match[3])};
  kernel.threads = static_cast<unsigned>(std::stoul(match[4]));
  Parser parser(&kernel);
  parser.add_parameter(match[2]);
  const std::string body = match.suffix();
  for (std::size_t begin = 0; begin < body.size();) {
    const std::size_t end = std::min(body.find(';', begin), body.size());
    parser.add(body.substr(begin, end - begin));
    begin = end + 1;
  }
  parser.finish();
  return kernel;
}

}  // namespace fake_cuda::ptx
