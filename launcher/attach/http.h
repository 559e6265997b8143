// --http of the commands that serve: where the dashboard and the metrics are.
#ifndef CADRE_LAUNCHER_ATTACH_HTTP_H_
#define CADRE_LAUNCHER_ATTACH_HTTP_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/web/dashboard/dashboard.h"

namespace cadre::launcher {

inline constexpr int kDefaultHttpPort = 29480;

// At the end: for readers to take the last state.
inline constexpr absl::Duration kHttpFinishTimeout = absl::Seconds(1);

// Reads "HOST[:PORT]". Readers need `token`, that of --token-file, where there is one; off loopback
// there must be one, and `tls_dir` is refused, because what is meant to be encrypted would go
// unencrypted there. INVALID_ARGUMENT says what to do.
absl::StatusOr<web::DashboardOptions> ReadHttp(const std::string& text, const std::string& token,
                                               const std::string& tls_dir);

// The address for people: "http://HOST:PORT/".
std::string HttpAddress(const web::DashboardOptions& options, const web::Dashboard& dashboard);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_HTTP_H_
