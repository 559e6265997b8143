// Environment variables, as a process reads them about itself. Pure.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_VARIABLES_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_VARIABLES_H_

#include <functional>
#include <optional>

#include "absl/strings/string_view.h"
#include "cadre/result.h"

namespace cadre::environment {

// Like getenv: nullptr when the variable is not set.
using GetVariable = std::function<const char*(const char* name)>;

// Empty when it is not set.
absl::string_view TextOf(const GetVariable& get, const char* name);

// nullopt: it is not set, or empty. INVALID_ARGUMENT: no number, or a negative one.
Result<std::optional<int>> NumberOf(const GetVariable& get, const char* name);

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_VARIABLES_H_
