#include "worker_runtime/standby_assignment.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

constexpr char kVariable[] = "CADRE_STANDS_BY";

// Reads up to the NUL that ends the assignment, which follows the NUL of its last entry.
Result<std::string> ReadText(int socket) {
  std::string text;
  char chunk[4096];
  while (text.size() < 2 || text.compare(text.size() - 2, 2, "\0\0", 2) != 0) {
    const ssize_t n = recv(socket, chunk, sizeof(chunk), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return UnavailableError(
          "this standby process got no worker's place: the supervisor closed the connection");
    }
    text.append(chunk, static_cast<size_t>(n));
  }
  return text;
}

}  // namespace

bool StandsBy(const environment::GetVariable& get) { return get(kVariable) != nullptr; }

Result<Assignment> AwaitAssignment(const environment::GetVariable& get) {
  int socket = -1;
  // The byte tells the supervisor that this process is waiting.
  if (!absl::SimpleAtoi(get(kVariable), &socket) ||
      (send(socket, "", 1, MSG_NOSIGNAL) != 1 && errno != EPIPE)) {
    return InvalidArgumentError(
        absl::StrCat(kVariable, " is \"", get(kVariable),
                     "\", but must be the number of an open socket: pass descriptors on to the "
                     "program"));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadText(socket));
  Assignment assignment;
  for (const char* entry = text.c_str(); *entry != '\0'; entry += strlen(entry) + 1) {
    const char* equals = strchr(entry, '=');
    if (equals != nullptr) assignment[std::string(entry, equals)] = equals + 1;
  }
  return assignment;
}

environment::GetVariable WithAssignment(const Assignment& assignment,
                                        environment::GetVariable get) {
  return [&assignment, get = std::move(get)](const char* name) {
    const auto assigned = assignment.find(name);
    return assigned != assignment.end() ? assigned->second.c_str() : get(name);
  };
}

}  // namespace cadre
