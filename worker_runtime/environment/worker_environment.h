// Environment variables, read through a function that tests can replace: those that Cadre's agent
// sets for a worker, and the secret of ranks without an agent. Pure, except that files of tokens
// are read.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_WORKER_ENVIRONMENT_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_WORKER_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "cadre/result.h"

namespace cadre::environment {

// Like getenv: nullptr when the variable is not set.
using GetVariable = std::function<const char*(const char* name)>;

// Empty when it is not set.
absl::string_view TextOf(const GetVariable& get, const char* name);

// nullopt: it is not set, or empty. INVALID_ARGUMENT: it is not a number, or negative.
Result<std::optional<int>> NumberOf(const GetVariable& get, const char* name);

// The shared secret by which the ranks of a launch without Cadre's agent authenticate each other.
struct Secret {
  std::string token;  // never logged
  // True: the content of CADRE_SECRET_FILE, which other machines may have too. False: this user's
  // own secret on this machine, in which case ranks must not communicate with other machines.
  bool from_file = false;
};

// Reads the file, or creates this user's secret if CADRE_SECRET_FILE is not set. Errors are those
// of ReadTokenFile and RuntimeDirectory (base/), with what to do.
Result<Secret> ReadSecret(const GetVariable& get);

struct WorkerEnvironment {
  std::string agent_socket;     // CADRE_AGENT, a path
  std::string token;            // content of CADRE_TOKEN_FILE; never logged
  uint64_t generation = 0;      // CADRE_GENERATION
  int rank = 0;                 // RANK
  int progress_fd = -1;         // CADRE_PROGRESS_FD; -1 when there is none
  std::string checkpoint_file;  // CADRE_CHECKPOINT_FILE; may be empty
};

// Whether CADRE_AGENT is set.
bool StartedByCadre(const GetVariable& get);

// FAILED_PRECONDITION if not StartedByCadre(); INVALID_ARGUMENT, naming the variable, if one is
// invalid; and errors of ReadTokenFile.
Result<WorkerEnvironment> ReadWorkerEnvironment(const GetVariable& get);

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_WORKER_ENVIRONMENT_H_
