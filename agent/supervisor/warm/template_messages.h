// The messages between a template and its supervisor on a SOCK_SEQPACKET pair: text fields
// separated by NULs; no field contains one. The template's end is sitecustomize.py.
//
//   the supervisor sends
//     imports, MODULE, SCRIPT, LEARNED, PRELOAD, REFUSED, RANK_VARIABLES, NAME=value...
//         first; lists are separated by commas; NAME=value is the environment of the worker that
//         wrote LEARNED
//     fork, SERIAL, MARKER, DIRECTORY, LEARNED, NAME=value...
//         with five descriptors: standard input, output, error, progress, and one on which the
//         worker waits for a "g"
//   the template sends
//     looks                  first, if there are packages that it has not examined
//     imports                it has examined what it must, and begins to import
//     ready, MODULES, MILLISECONDS, NOTE...
//         it can be forked; the notes tell what it leaves to the workers to import, and why
//     refused, "NAME: WHY"...
//         instead of ready, and it ends: it has imported what must not be imported
//     ended, WHY             instead of ready, and it ends
//     forked, SERIAL, PID    the process is the supervisor's child, and waits
//     failed, SERIAL, WHY
//     stale, SERIAL, PATH    and it ends: a package that it has imported was reinstalled
//
// Pure.
#ifndef CADRE_AGENT_SUPERVISOR_WARM_TEMPLATE_MESSAGES_H_
#define CADRE_AGENT_SUPERVISOR_WARM_TEMPLATE_MESSAGES_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::supervisor {

// The kernel accepts about this much in one message by default. With a larger environment a worker
// is started without a template.
inline constexpr size_t kMaxOrderBytes = 160 << 10;
inline constexpr size_t kMaxAnswerBytes = 64 << 10;

struct ImportOrder {
  std::string module;  // of python -m
  std::string script;
  std::string learned;  // the file that lists the imports
  std::vector<std::string> preload;
  std::vector<std::string> refused;
  std::vector<std::string> rank_variables;
  std::vector<std::string> environment;  // of the worker that wrote that file
};

struct ForkOrder {
  uint64_t serial = 0;
  std::string marker;
  std::string directory;
  std::string learned;  // the file to which the worker writes its imports; empty: none
  std::vector<std::string> environment;
};

// RESOURCE_EXHAUSTED: too long. INVALID_ARGUMENT: a field contains a NUL or, in a list, a comma.
absl::StatusOr<std::string> Encode(const ImportOrder& order);
absl::StatusOr<std::string> Encode(const ForkOrder& order);

struct TemplateImports {
  bool examines = false;  // the `looks` message
};
struct TemplateReady {
  uint32_t modules = 0;
  uint32_t milliseconds = 0;
  std::vector<std::string> notes;  // "NAME: WHY"
};
struct TemplateRefused {
  std::vector<std::string> names;
  std::vector<std::string> reasons;  // "NAME: WHY"
};
struct TemplateEnded {
  std::string why;
};
struct WorkerForked {
  uint64_t serial = 0;
  pid_t pid = 0;
};
struct WorkerNotForked {
  uint64_t serial = 0;
  std::string why;
  bool ends = false;  // the template ends too
};
using TemplateAnswer = std::variant<TemplateImports, TemplateReady, TemplateRefused, TemplateEnded,
                                    WorkerForked, WorkerNotForked>;

// INVALID_ARGUMENT: not a valid message.
absl::StatusOr<TemplateAnswer> ParseAnswer(absl::string_view message);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_WARM_TEMPLATE_MESSAGES_H_
