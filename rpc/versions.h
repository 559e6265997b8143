// Which versions of Cadre work together: those of one major version with equal or adjacent minor
// versions, in every combination of server, agent and launcher. Pure; thread safe.
#ifndef CADRE_RPC_VERSIONS_H_
#define CADRE_RPC_VERSIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/version.pb.h"

namespace cadre::rpc {

inline constexpr uint32_t kMajorVersion = 0;
inline constexpr uint32_t kMinorVersion = 4;

// The version of this program.
v1::Version ThisVersion();
// The version of a peer that sends none: 0.2.
v1::Version VersionOfUnversionedPeer();
// The version of the sender of a Join, an AgentJoined or a Welcome.
template <typename Message>
v1::Version VersionIn(const Message& message) {
  return message.has_version() ? message.version() : VersionOfUnversionedPeer();
}

// For people: "0.4.0", or "0.2" if the patch version is not known.
std::string VersionText(const v1::Version& version);
// The same if it differs from this program's version; otherwise empty.
std::string OtherVersionText(const v1::Version& version);

// OK, or UNAVAILABLE with one line that names both versions and which one to upgrade. `here` and
// `there` name the two programs: "the server", "this node".
absl::Status CheckVersions(absl::string_view here, const v1::Version& own, absl::string_view there,
                           const v1::Version& other);

// Whether an agent of this version runs batch jobs and their steps (0.4 and later).
bool KnowsBatchJobs(const v1::Version& version);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_VERSIONS_H_
