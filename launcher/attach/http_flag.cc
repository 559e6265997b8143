#include "launcher/attach/http_flag.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "launcher/environment/endpoint.h"

namespace cadre::launcher {
namespace {

absl::Status HttpFlagError(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("--http: ", text));
}

}  // namespace

absl::StatusOr<web::DashboardOptions> ReadHttp(const std::string& text, const std::string& token,
                                               const std::string& tls_dir) {
  const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(text, kDefaultHttpPort);
  if (!endpoint.ok()) return HttpFlagError(endpoint.status().message());
  const absl::StatusOr<ResolvedEndpoint> at = Resolve(*endpoint);
  if (!at.ok()) return HttpFlagError(at.status().message());
  web::DashboardOptions options;
  options.host = at->address;
  options.port = at->port;
  if (token.empty()) {
    if (at->loopback) return options;
    return HttpFlagError(
        absl::StrCat(endpoint->host,
                     " can be reached from other machines, so a token is needed: give "
                     "--token-file, or listen on 127.0.0.1"));
  }
  if (!tls_dir.empty() && !at->loopback) {
    return HttpFlagError(absl::StrCat("the dashboard at ", endpoint->host,
                                      " would not be encrypted, although --tls-dir asks for "
                                      "encryption: listen on 127.0.0.1, behind ssh or a proxy"));
  }
  options.token = token;
  return options;
}

std::string HttpAddress(const web::DashboardOptions& options, const web::Dashboard& dashboard) {
  return absl::StrCat("http://", HostPort(options.host, dashboard.port()), "/");
}

}  // namespace cadre::launcher
