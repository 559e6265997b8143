// The result of a `cadre run` command line, for tests.
#ifndef CADRE_LAUNCHER_FLAGS_RESOLVE_FOR_TEST_H_
#define CADRE_LAUNCHER_FLAGS_RESOLVE_FOR_TEST_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/flags/parser.h"
#include "launcher/flags/run_flags.h"
#include "launcher/flags/run_options.h"

namespace cadre::launcher::for_test {

inline absl::StatusOr<RunOptions> Resolve(const std::vector<std::string>& arguments,
                                          std::map<std::string, std::string> environment = {},
                                          std::optional<v1::JobSpec> spec = std::nullopt,
                                          std::optional<Identity> identity = std::nullopt) {
  Command command;
  command.name = "run";
  command.takes_program = true;
  command.flags = RunFlags();
  absl::StatusOr<Parsed> parsed = ParseArguments(command, arguments);
  if (!parsed.ok()) return parsed.status();
  return ResolveRun(Settings(*parsed, std::move(environment), RunFlags()), std::move(spec),
                    identity);
}

}  // namespace cadre::launcher::for_test

#endif  // CADRE_LAUNCHER_FLAGS_RESOLVE_FOR_TEST_H_
