// Converts libtorch's exceptions to statuses.
#ifndef CADRE_WORKER_RUNTIME_TORCH_GUARDED_H_
#define CADRE_WORKER_RUNTIME_TORCH_GUARDED_H_

#include <algorithm>
#include <exception>
#include <string>

#include "cadre/status.h"

namespace cadre::nn {

// The exception's text on one line, without the backtrace that libtorch adds.
inline std::string OneLine(const std::exception& error) {
  std::string why = error.what();
  why.erase(std::min(why.find("\nException raised from "), why.size()));
  std::replace(why.begin(), why.end(), '\n', ' ');
  return why;
}

// Returns the result of `body`, or INTERNAL with `what` and the exception's text as above.
template <typename Body>
Status Guarded(const std::string& what, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return InternalError(what + ": " + OneLine(error));
  }
}

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_GUARDED_H_
