// Starts a process and passes it a secret. Thread safe.
// Implemented in gate.cc.
#ifndef CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_SPAWN_H_
#define CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_SPAWN_H_

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cadre/result.h"

namespace cadre {

// The descriptor from which the new process reads the secret. Other processes could read its
// arguments and its environment.
inline constexpr int kSecretFd = 3;
// How many bytes a pipe takes without a reader.
inline constexpr size_t kMaxSecretBytes = 4096;

// `argv[0]` is the program's path.
Result<pid_t> SpawnWithSecret(const std::vector<std::string>& argv, std::string_view secret);

// To be called once, in the new process: returns everything that kSecretFd holds.
Result<std::string> ReadSecret();

}  // namespace cadre

#endif  // CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_SPAWN_H_
