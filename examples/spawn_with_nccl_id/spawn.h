// Starts a process and hands it a secret. Thread safe.
#ifndef CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_SPAWN_H_
#define CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_SPAWN_H_

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cadre/result.h"

namespace cadre {

// Where the started process finds the secret: neither its arguments nor its environment, which
// other processes can read.
inline constexpr int kSecretFd = 3;
// Bytes that a pipe takes without a reader.
inline constexpr size_t kMaxSecretBytes = 4096;

// `argv[0]` is the program's path.
Result<pid_t> SpawnWithSecret(const std::vector<std::string>& argv, std::string_view secret);

// In the started process, once: everything that kSecretFd holds.
Result<std::string> ReadSecret();

}  // namespace cadre

#endif  // CADRE_EXAMPLES_SPAWN_WITH_NCCL_ID_SPAWN_H_
