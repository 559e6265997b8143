// Details by which a status tells programs more than its code; its text is for people alone.
#ifndef CADRE_RPC_STATUS_DETAILS_H_
#define CADRE_RPC_STATUS_DETAILS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre::rpc {

// UNAVAILABLE, from a server that is one of ours and does not lead.
absl::Status NotLeading(absl::string_view message);
bool IsNotLeading(const absl::Status& status);

// The details as bytes (v1::StatusDetails); empty: none.
std::string SerializedDetails(const absl::Status& status);
absl::Status WithSerializedDetails(absl::Status status, absl::string_view details);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_STATUS_DETAILS_H_
