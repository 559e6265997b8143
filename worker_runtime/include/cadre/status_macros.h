// Early return on an error.
#ifndef CADRE_STATUS_MACROS_H_
#define CADRE_STATUS_MACROS_H_

#include <cstdio>
#include <utility>

#define CADRE_CONCAT_INNER(a, b) a##b
#define CADRE_CONCAT(a, b) CADRE_CONCAT_INNER(a, b)

// For main(), which returns an int:
//   CADRE_EXIT_IF_ERROR(Open(path)); CADRE_ASSIGN_OR_EXIT(auto world, cadre::Connect());
// An error is printed to standard error, and main() returns 1.
#define CADRE_EXIT_IF_ERROR(expression)                                            \
  do {                                                                             \
    const auto cadre_status = (expression);                                        \
    if (!cadre_status.ok()) {                                                      \
      std::fprintf(stderr, "%s: %s\n", __FILE__, cadre_status.ToString().c_str()); \
      return 1;                                                                    \
    }                                                                              \
  } while (false)
#define CADRE_ASSIGN_OR_EXIT(target, expression) \
  CADRE_ASSIGN_OR_EXIT_INNER(CADRE_CONCAT(cadre_result_, __COUNTER__), target, expression)
#define CADRE_ASSIGN_OR_EXIT_INNER(result, target, expression) \
  auto result = (expression);                                  \
  CADRE_EXIT_IF_ERROR(result.status());                        \
  target = *std::move(result)

// For functions that return a Status or a Result: CADRE_RETURN_IF_ERROR(Open(path));
#define CADRE_RETURN_IF_ERROR(expression)        \
  do {                                           \
    auto cadre_status = (expression);            \
    if (!cadre_status.ok()) return cadre_status; \
  } while (false)

// Likewise: CADRE_ASSIGN_OR_RETURN(const int fd, Open(path)); It expands to several statements, so
// it needs braces after an `if`.
#define CADRE_ASSIGN_OR_RETURN(target, expression) \
  CADRE_ASSIGN_OR_RETURN_INNER(CADRE_CONCAT(cadre_result_, __COUNTER__), target, expression)
#define CADRE_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                    \
  if (!result.ok()) return std::move(result).status();           \
  target = *std::move(result)

#endif  // CADRE_STATUS_MACROS_H_
