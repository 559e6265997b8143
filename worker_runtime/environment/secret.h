// What the ranks of a launch without Cadre's agent prove to each other that they know.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_SECRET_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_SECRET_H_

#include <string>

#include "cadre/result.h"
#include "worker_runtime/environment/variables.h"

namespace cadre::environment {

struct Secret {
  std::string token;  // never logged
  // It is the content of CADRE_SECRET_FILE, which other machines may have too; else this user's own
  // on this machine, and then nothing may leave the machine.
  bool from_file = false;
};

// Reads the file, or makes this user's secret where there is none. Errors as ReadTokenFile's and
// RuntimeDirectory's (base/), with what to do.
Result<Secret> ReadSecret(const GetVariable& get);

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_SECRET_H_
