#include "launcher/attach/security.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/bearer_token.h"

namespace cadre::launcher {

absl::StatusOr<rpc::TransportSecurity> SecurityOf(const std::string& tls_dir, bool insecure,
                                                  const FoundToken& token, bool loopback) {
  if (insecure && !tls_dir.empty()) {
    return absl::InvalidArgumentError(
        "--insecure: with --tls-dir all is encrypted; leave one of them out");
  }
  rpc::TransportSecurity security;
  security.tls_dir = tls_dir;
  security.insecure = insecure;
  if (insecure || !tls_dir.empty()) return security;
  security.by_token = !ServerKeyNamedBy(token.token).empty();
  // An agent of 0.2, which speaks in clear itself, has started this launcher of a later version.
  if (security.by_token || loopback || IsPartTokenBefore(token.token)) return security;
  return absl::InvalidArgumentError(absl::StrCat("--token-file: ", rpc::kNoServerKey));
}

rpc::TransportSecurity ForServer(rpc::TransportSecurity security, const FoundToken& token) {
  if (security.insecure) security.by_token = !ServerKeyNamedBy(token.token).empty();
  return security;
}

}  // namespace cadre::launcher
