#include "agent/supervisor/processes/containable.h"

#include <unistd.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "agent/supervisor/processes/cgroup_place.h"
#include "agent/supervisor/processes/controllers.h"
#include "agent/supervisor/processes/device_filter.h"

namespace cadre::supervisor {
namespace {

std::string Devices() {
  const absl::StatusOr<ScopedFd> program = LoadDeviceProgram({});
  // Who is not root cannot try, and Linux has it since 4.15 wherever it has cgroups and BPF.
  if (program.ok() || (geteuid() != 0 && absl::IsPermissionDenied(program.status()))) return "";
  return std::string(program.status().message());
}

}  // namespace

Containable WhatCanBeContained() {
  const std::string none = "no cgroup v2 is mounted";
  if (CgroupMount().empty()) return {none, none, none};
  const ControllerFiles files = ReadControllerFiles();
  return {Devices(), WhyWithout("memory", files), WhyWithout("pids", files)};
}

}  // namespace cadre::supervisor
