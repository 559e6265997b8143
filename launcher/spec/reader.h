// The job spec: YAML into v1::JobSpec, strictly. Unknown and repeated keys and wrong types are
// errors with line and column. Pure but for ReadSpecFile.
#ifndef CADRE_LAUNCHER_SPEC_READER_H_
#define CADRE_LAUNCHER_SPEC_READER_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

// `file` is what errors begin with. Fields that the text does not mention stay unset.
absl::StatusOr<v1::JobSpec> ReadSpec(absl::string_view text, absl::string_view file);

// NOT_FOUND, INVALID_ARGUMENT (also for a file over kMaxSpecBytes, before it is read).
absl::StatusOr<v1::JobSpec> ReadSpecFile(const std::string& path);

// An error about a value that is found only later, with line and column as ReadSpecFile gives them:
// `error` is "timeouts.stop_grace: why". Without line and column where the file does not say that
// key.
absl::Status SpecErrorAt(const std::string& path, absl::string_view error);

// Fills what neither spec nor flags said.
void FillSpecDefaults(v1::JobSpec& spec);

// The keys of each mapping, by its name ("" is the document). For the JSON schema's test.
std::map<std::string, std::vector<std::string>> SpecKeys();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SPEC_READER_H_
