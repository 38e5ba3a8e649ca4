#pragma once

#include <string>

namespace gluon_syncbn {

/// Appends `item`, after ", " if the list is not empty.
inline void append_item(std::string* list, const std::string& item) {
  *list += (list->empty() ? "" : ", ") + item;
}

/// Returns "4, 5" for a range of the numbers 4 and 5.
template <class Numbers>
std::string number_list(const Numbers& numbers) {
  std::string list;
  for (const auto number : numbers) append_item(&list, std::to_string(number));
  return list;
}

}  // namespace gluon_syncbn
