// Reads the job spec, YAML, into v1::JobSpec, strictly: unknown and repeated keys and wrong types
// are errors with line and column. Fills in defaults. Only ReadSpecFile and SpecErrorAt read files;
// times such as "now+1hour" are counted from when they are read.
#ifndef CADRE_LAUNCHER_SPEC_JOB_SPEC_H_
#define CADRE_LAUNCHER_SPEC_JOB_SPEC_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

// Errors begin with `file`. Fields that the text does not mention stay unset.
absl::StatusOr<v1::JobSpec> ReadSpec(absl::string_view text, absl::string_view file);

// NOT_FOUND, INVALID_ARGUMENT (also for a file over kMaxSpecBytes, before it is read).
absl::StatusOr<v1::JobSpec> ReadSpecFile(const std::string& path);

// An error about a value that is found only later, with line and column as in ReadSpecFile's
// errors: `error` is "timeouts.stop_grace: why". Without line and column if the file does not have
// that key.
absl::Status SpecErrorAt(const std::string& path, absl::string_view error);

// Sets one property as the file of a spec would: `assignment` is PATH=VALUE, such as
// "timeouts.progress=10m", "env.NAME=text" or "restart.on=[crash, hang]". A list is written in YAML
// and replaces the one that the spec has; any other value is the text of a scalar, without YAML's
// quotes. INVALID_ARGUMENT: one line, without a file's name.
absl::Status SetInSpec(absl::string_view assignment, v1::JobSpec& spec);

// What SetInSpec() takes, for people.
struct SpecProperty {
  // "timeouts.progress"; "env.NAME" stands for each variable.
  std::string path;
  // "TIME", "N", "true|false"
  std::string form;
  // The value if neither the spec nor a flag gives one.
  std::string preset;
  std::string help;
};
// In the order of the file's description.
std::vector<SpecProperty> SpecProperties();

// Sets defaults for what neither the spec nor flags set.
void FillSpecDefaults(v1::JobSpec& spec);

// The keys of each mapping, by its name ("" is the document). For the JSON schema's test.
std::map<std::string, std::vector<std::string>> SpecKeys();

// Whether a message can be sent and stored: Protobuf writes strings that are not UTF-8, and then
// cannot read them. INVALID_ARGUMENT names and shows the first string, at any depth, that is not
// UTF-8: "logs.dir: ...". For a map it shows no value. Messages from gRPC were parsed and need no
// check; those that a launcher passes to the server in its own process do.
absl::Status CheckUtf8Fields(const google::protobuf::Message& message);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SPEC_JOB_SPEC_H_
