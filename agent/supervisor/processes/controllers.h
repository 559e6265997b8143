// Cgroup v2 controllers: whether this machine has one for cgroups of ours, and how they get it.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESSES_CONTROLLERS_H_
#define CADRE_AGENT_SUPERVISOR_PROCESSES_CONTROLLERS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace cadre::supervisor {

// What the kernel says of its controllers.
struct ControllerFiles {
  std::string kernel;      // /proc/cgroups
  std::string everywhere;  // cgroup.controllers of cgroup v2's root
  std::string here;        // that of the cgroup `place`
  std::string place;
};

ControllerFiles ReadControllerFiles();

// Why cgroups that are made in `place` cannot have it; empty: they can. Pure.
std::string WhyWithout(absl::string_view controller, const ControllerFiles& files);

// Has `cgroup` pass the controller on to those in it. Empty: it does; else why not.
std::string PassOnFrom(absl::string_view controller, const std::string& cgroup);

// Has `parent` pass the controller on to `root`, which is a cgroup in it, and that one to those in
// it. A cgroup that does so can hold no process itself: where only this process and its parent are
// in `parent`, which they do not share then, they move to one beside `root`. Empty: it is done, or
// was before; else why not. Supervisor's thread only.
std::string PassOn(absl::string_view controller, const std::string& parent,
                   const std::string& root);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESSES_CONTROLLERS_H_
