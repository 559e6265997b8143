// Which versions of Cadre work together: those of one major version whose minor versions are next
// to each other, in every pairing of server, agent and launcher. Pure; thread safe.
#ifndef CADRE_RPC_VERSIONS_H_
#define CADRE_RPC_VERSIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/version.pb.h"

namespace cadre::rpc {

inline constexpr uint32_t kMajorVersion = 0;
inline constexpr uint32_t kMinorVersion = 3;

// From which minor version on a node answers a question. One of before is not asked.
inline constexpr uint32_t kStacksSince = 3;
// From which on its workers encrypt where the job says so.
inline constexpr uint32_t kEncryptSince = 3;
// From which on a server takes what an agent says of a program's imports.
inline constexpr uint32_t kImportsSince = 3;
// From which on the token of a part's launcher names the state of the server that it is for.
inline constexpr uint32_t kPartTokenSince = 3;

// Of this program.
v1::Version ThisVersion();
// Of what says nothing: 0.2.
v1::Version VersionBefore();
// Of who sent a Join, an AgentJoined or a Welcome.
template <typename Message>
v1::Version VersionIn(const Message& message) {
  return message.has_version() ? message.version() : VersionBefore();
}

bool IsSince(const v1::Version& version, uint32_t minor);

// For people: "0.3.0", or "0.2" where no more is known.
std::string VersionText(const v1::Version& version);
// The same where it differs from this program's; else empty.
std::string OtherVersionText(const v1::Version& version);

// OK, or UNAVAILABLE, one line with both versions and what to upgrade to what. `here` and `there`
// name the two programs: "the server", "this node".
absl::Status CheckVersions(absl::string_view here, const v1::Version& own, absl::string_view there,
                           const v1::Version& other);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_VERSIONS_H_
