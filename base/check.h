// CADRE_CHECK for what the program itself guarantees. Where input or the environment may break it,
// return a status instead.
#ifndef CADRE_BASE_CHECK_H_
#define CADRE_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace cadre {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition,
                                     const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, condition, message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace cadre

// CADRE_CHECK(rank < size, "rank ", rank, " of ", size);
#define CADRE_CHECK(condition, ...)                                                    \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      ::cadre::CheckFailed(__FILE__, __LINE__, #condition, absl::StrCat(__VA_ARGS__)); \
    }                                                                                  \
  } while (false)

#endif  // CADRE_BASE_CHECK_H_
