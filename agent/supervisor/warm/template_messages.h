// What a template and its supervisor say to each other on a SOCK_SEQPACKET pair: a message is text
// fields with a NUL between them, of which none contains one. The other end is sitecustomize.py.
//
//   the supervisor sends
//     imports, MODULE, SCRIPT, LEARNED, PRELOAD, REFUSED, RANK_VARIABLES, NAME=value...   first;
//     lists by
//         commas; the variables are those that the worker was given that wrote LEARNED
//     fork, SERIAL, MARKER, DIRECTORY, LEARNED, NAME=value...   with five descriptors: standard
//         input, output, error, progress, and one on which the worker waits for a "g"
//   the template sends
//     looks                            first, where there are packages that it does not know
//     imports                          it has looked at what it has to, and begins to import
//     ready, MODULES, MILLISECONDS, NOTE...   once it can be forked; what it leaves to the workers
//     and why refused, "NAME: WHY"...              instead, and ends: it has imported what it must
//     not have ended, WHY                           instead, and ends forked, SERIAL, PID the
//     process is the supervisor's child, and waits failed, SERIAL, WHY stale, SERIAL, PATH and
//     ends: what it has imported was installed anew
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

// The kernel takes about this much in one piece by default. A larger environment starts plainly.
inline constexpr size_t kMaxOrderBytes = 160 << 10;
inline constexpr size_t kMaxAnswerBytes = 64 << 10;

struct ImportOrder {
  std::string module;  // of python -m
  std::string script;
  std::string learned;  // file of what was imported
  std::vector<std::string> preload;
  std::vector<std::string> refused;
  std::vector<std::string> rank_variables;
  std::vector<std::string> environment;  // of the worker that has imported it
};

struct ForkOrder {
  uint64_t serial = 0;
  std::string marker;
  std::string directory;
  std::string learned;  // where the worker writes what it imports; empty: it does not
  std::vector<std::string> environment;
};

// RESOURCE_EXHAUSTED: too long. INVALID_ARGUMENT: a NUL or, in a list, a comma.
absl::StatusOr<std::string> Encode(const ImportOrder& order);
absl::StatusOr<std::string> Encode(const ForkOrder& order);

struct TemplateImports {
  bool looks = false;  // first
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
  bool ends = false;  // so does the template
};
using TemplateAnswer = std::variant<TemplateImports, TemplateReady, TemplateRefused, TemplateEnded,
                                    WorkerForked, WorkerNotForked>;

// INVALID_ARGUMENT: none of these.
absl::StatusOr<TemplateAnswer> ParseAnswer(absl::string_view message);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_WARM_TEMPLATE_MESSAGES_H_
