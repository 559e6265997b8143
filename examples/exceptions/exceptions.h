// Turns exceptions of libtorch into statuses.
#ifndef CADRE_EXAMPLES_EXCEPTIONS_EXCEPTIONS_H_
#define CADRE_EXAMPLES_EXCEPTIONS_EXCEPTIONS_H_

#include <exception>
#include <string>
#include <type_traits>

#include "cadre/status.h"

namespace cadre {

// Returns what `body` returns, a Status or a Result. If `body` throws, returns INTERNAL with the
// first line of the exception's text; libtorch adds a backtrace after it.
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
