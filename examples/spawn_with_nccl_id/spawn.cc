#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <unistd.h>

namespace cadre {
namespace {

Status ErrnoStatus(const std::string& what, int error) {
  return UnavailableError(what + ": " + strerror(error));
}

}  // namespace

Result<pid_t> SpawnWithSecret(const std::vector<std::string>& argv, std::string_view secret) {
  if (argv.empty()) return InvalidArgumentError("no program");
  if (secret.size() > kMaxSecretBytes) {
    return InvalidArgumentError("a secret of " + std::to_string(secret.size()) +
                                " bytes; at most " + std::to_string(kMaxSecretBytes));
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe", errno);
  // The pipe holds the secret from here on, and its end comes when the writing end is closed.
  const ssize_t written = write(ends[1], secret.data(), secret.size());
  const int write_error = errno;
  close(ends[1]);
  if (written != static_cast<ssize_t>(secret.size())) {
    close(ends[0]);
    return ErrnoStatus("write to a pipe", write_error);
  }

  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.data()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // Also takes the close-on-exec flag away, when the numbers are equal.
  posix_spawn_file_actions_adddup2(&actions, ends[0], kSecretFd);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, argv[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[0]);
  if (error != 0) return ErrnoStatus(argv[0], error);
  return pid;
}

Result<std::string> ReadSecret() {
  std::string secret(kMaxSecretBytes, '\0');
  size_t size = 0;
  while (size < secret.size()) {
    const ssize_t got = read(kSecretFd, secret.data() + size, secret.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return FailedPreconditionError(
          "descriptor " + std::to_string(kSecretFd) + ": " + strerror(errno) +
          "; this program starts its own processes: leave --local-rank away");
    }
    if (got == 0) break;
    size += got;
  }
  close(kSecretFd);
  secret.resize(size);
  return secret;
}

}  // namespace cadre
