// Early return on a status that is not OK.
#ifndef CADRE_BASE_STATUS_MACROS_H_
#define CADRE_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define CADRE_CONCAT_INNER(a, b) a##b
#define CADRE_CONCAT(a, b) CADRE_CONCAT_INNER(a, b)

// CADRE_RETURN_IF_ERROR(Open(path));
#define CADRE_RETURN_IF_ERROR(expression)        \
  do {                                           \
    absl::Status cadre_status = (expression);    \
    if (!cadre_status.ok()) return cadre_status; \
  } while (false)

// CADRE_ASSIGN_OR_RETURN(const int fd, Open(path));
#define CADRE_ASSIGN_OR_RETURN(target, expression) \
  CADRE_ASSIGN_OR_RETURN_INNER(CADRE_CONCAT(cadre_result_, __LINE__), target, expression)
#define CADRE_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                    \
  if (!result.ok()) return std::move(result).status();           \
  target = *std::move(result)

// For sources of this repository: headers and programs that a user includes or copies have the
// names above, because another library may define these.
#define RETURN_IF_ERROR(expression) CADRE_RETURN_IF_ERROR(expression)
#define ASSIGN_OR_RETURN(target, expression) CADRE_ASSIGN_OR_RETURN(target, expression)

#endif  // CADRE_BASE_STATUS_MACROS_H_
