#include "agent/supervisor/standby.h"

#include <sys/socket.h>

namespace cadre::supervisor {

StandbySocket MakeStandbySocket() {
  StandbySocket made;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return made;
  made.ours.Reset(ends[0]);
  made.theirs.Reset(ends[1]);
  return made;
}

Group* AssignStandby(State& state, const std::vector<std::string>& assignment) {
  std::string text;
  for (const std::string& entry : assignment) text.append(entry).push_back('\0');
  text.push_back('\0');
  for (auto& [serial, group] : state.groups) {
    if (!group.standby.ok() || group.exited || group.ending.asked) continue;
    char waits = 0;
    if (recv(group.standby.get(), &waits, sizeof(waits), MSG_DONTWAIT) != 1) continue;
    // One that does not take it all is gone, and is not asked again, having nothing more to say.
    const ssize_t n =
        send(group.standby.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n == static_cast<ssize_t>(text.size())) return &group;
  }
  return nullptr;
}

}  // namespace cadre::supervisor
