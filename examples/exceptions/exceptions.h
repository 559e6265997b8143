// What libtorch throws, as statuses.
#ifndef CADRE_EXAMPLES_EXCEPTIONS_EXCEPTIONS_H_
#define CADRE_EXAMPLES_EXCEPTIONS_EXCEPTIONS_H_

#include <exception>
#include <string>
#include <type_traits>

#include "cadre/status.h"

namespace cadre {

// What `body` returns, a Status or a Result; INTERNAL: the first line of what was thrown in it,
// behind which libtorch adds a backtrace.
template <typename Body>
std::invoke_result_t<const Body&> WithoutExceptions(const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    const std::string what = error.what();
    return InternalError(what.substr(0, what.find('\n')));
  }
}

}  // namespace cadre

#endif  // CADRE_EXAMPLES_EXCEPTIONS_EXCEPTIONS_H_
