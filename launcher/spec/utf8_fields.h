// Whether a message can be sent and kept: Protobuf writes text that is no UTF-8, and does not read
// it again. Pure.
#ifndef CADRE_LAUNCHER_SPEC_UTF8_FIELDS_H_
#define CADRE_LAUNCHER_SPEC_UTF8_FIELDS_H_

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace cadre::launcher {

// INVALID_ARGUMENT names the first text, at any depth, that is no UTF-8, and shows it: "logs.dir:
// ...". Of a map it shows none. What came over gRPC was parsed; what a launcher hands to the server
// in its own process was not.
absl::Status CheckUtf8Fields(const google::protobuf::Message& message);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SPEC_UTF8_FIELDS_H_
