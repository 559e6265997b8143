// Numbers in what a program said.
#ifndef CADRE_TESTS_EXAMPLES_NUMBER_AFTER_H_
#define CADRE_TESTS_EXAMPLES_NUMBER_AFTER_H_

#include <cstdlib>
#include <string>

namespace cadre {

// That behind the last `before`; -1: it is not said.
inline double NumberAfter(const std::string& output, const std::string& before) {
  const size_t at = output.rfind(before);
  return at == std::string::npos ? -1 : std::atof(output.c_str() + at + before.size());
}

}  // namespace cadre

#endif  // CADRE_TESTS_EXAMPLES_NUMBER_AFTER_H_
