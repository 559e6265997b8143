#include "examples/spawn_with_nccl_id/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

absl::Status ErrnoStatus(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

}  // namespace

absl::StatusOr<pid_t> SpawnWithSecret(const std::vector<std::string>& argv,
                                      absl::string_view secret) {
  if (argv.empty()) return absl::InvalidArgumentError("no program");
  if (secret.size() > kMaxSecretBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a secret of ", secret.size(), " bytes; at most ", kMaxSecretBytes));
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe", errno);
  const auto close_read = absl::MakeCleanup([&] { close(ends[0]); });
  {
    const auto close_write = absl::MakeCleanup([&] { close(ends[1]); });
    if (write(ends[1], secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
      return ErrnoStatus("write to a pipe", errno);
    }
  }

  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.data()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const auto destroy = absl::MakeCleanup([&] { posix_spawn_file_actions_destroy(&actions); });
  // Also takes the close-on-exec flag away, when the numbers are equal.
  posix_spawn_file_actions_adddup2(&actions, ends[0], kSecretFd);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, argv[0].c_str(), &actions, nullptr, arguments.data(), environ);
  if (error != 0) return ErrnoStatus(argv[0], error);
  return pid;
}

absl::StatusOr<std::string> ReadSecret() {
  std::string secret(kMaxSecretBytes, '\0');
  size_t size = 0;
  while (size < secret.size()) {
    const ssize_t got = read(kSecretFd, secret.data() + size, secret.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("descriptor ", kSecretFd, ": ", strerror(errno),
                       "; this program starts its own processes: leave --local-rank away"));
    }
    if (got == 0) break;
    size += got;
  }
  close(kSecretFd);
  secret.resize(size);
  return secret;
}

}  // namespace cadre
