// Early return on a status that is not OK, for sources of this repository. Headers and programs
// that a user includes or copies have CADRE_RETURN_IF_ERROR of cadre/status_macros.h instead,
// because another library may define these.
#ifndef CADRE_BASE_STATUS_MACROS_H_
#define CADRE_BASE_STATUS_MACROS_H_

#include <utility>

#define CADRE_BASE_CONCAT_INNER(a, b) a##b
#define CADRE_BASE_CONCAT(a, b) CADRE_BASE_CONCAT_INNER(a, b)

// RETURN_IF_ERROR(Open(path));
#define RETURN_IF_ERROR(expression)              \
  do {                                           \
    auto early_status = (expression);            \
    if (!early_status.ok()) return early_status; \
  } while (false)

// ASSIGN_OR_RETURN(const int fd, Open(path));
#define ASSIGN_OR_RETURN(target, expression) \
  ASSIGN_OR_RETURN_INNER(CADRE_BASE_CONCAT(early_result_, __LINE__), target, expression)
#define ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                              \
  if (!result.ok()) return std::move(result).status();     \
  target = *std::move(result)

#endif  // CADRE_BASE_STATUS_MACROS_H_
