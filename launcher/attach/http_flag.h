// The flag --http of the commands that serve: the address of the dashboard and the metrics.
#ifndef CADRE_LAUNCHER_ATTACH_HTTP_FLAG_H_
#define CADRE_LAUNCHER_ATTACH_HTTP_FLAG_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/web/dashboard/dashboard.h"

namespace cadre::launcher {

inline constexpr int kDefaultHttpPort = 29480;

// The time at the end in which readers can fetch the last state.
inline constexpr absl::Duration kHttpFinishTimeout = absl::Seconds(1);

// Parses "HOST[:PORT]". Readers need `token`, that of --token-file, if there is one. Off loopback
// it is required, and `tls_dir` is refused, because data that the user wants encrypted would be
// sent in clear text there. INVALID_ARGUMENT says what to do.
absl::StatusOr<web::DashboardOptions> ReadHttp(const std::string& text, const std::string& token,
                                               const std::string& tls_dir);

// The address for users: "http://HOST:PORT/".
std::string HttpAddress(const web::DashboardOptions& options, const web::Dashboard& dashboard);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_HTTP_FLAG_H_
