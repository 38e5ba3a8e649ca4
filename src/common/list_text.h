#ifndef GLUON_SYNCBN_COMMON_LIST_TEXT_H_
#define GLUON_SYNCBN_COMMON_LIST_TEXT_H_

#include <string>

namespace gluon_syncbn {

/// Makes "a, b" of "a" and "b".
inline void append_item(std::string* list, const std::string& item) {
  *list += (list->empty() ? "" : ", ") + item;
}

/// "4, 5" for a range of numbers.
template <class Numbers>
std::string number_list(const Numbers& numbers) {
  std::string list;
  for (const auto number : numbers) append_item(&list, std::to_string(number));
  return list;
}

}  // namespace gluon_syncbn

#endif  // GLUON_SYNCBN_COMMON_LIST_TEXT_H_
