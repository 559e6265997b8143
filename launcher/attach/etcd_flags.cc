#include "launcher/attach/etcd_flags.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "launcher/environment/endpoint.h"

namespace cadre::launcher {
namespace {

constexpr size_t kPrefixBytesMax = 256;

absl::Status EtcdFlagError(const Setting& setting, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(setting.origin, ": ", why, "; expected http://HOST:2379[,...]"));
}

// The prefix ends with a slash, so that no prefix is the beginning of another one's keys.
absl::StatusOr<std::string> Prefix(const Settings& settings, const std::string& fallback) {
  std::string prefix = settings.GetOr("etcd-prefix", fallback);
  if (!absl::EndsWith(prefix, "/")) prefix += "/";
  for (const char c : prefix) {
    if (absl::ascii_isgraph(c)) continue;
    return absl::InvalidArgumentError("--etcd-prefix: expected visible characters only");
  }
  if (prefix.size() <= kPrefixBytesMax) return prefix;
  return absl::InvalidArgumentError(
      absl::StrCat("--etcd-prefix: expected at most ", kPrefixBytesMax, " bytes"));
}

}  // namespace

absl::StatusOr<std::optional<log::EtcdOptions>> EtcdFrom(const Settings& settings,
                                                         const std::string& default_prefix) {
  const std::optional<Setting> given = settings.Get("etcd");
  if (!given.has_value()) return std::optional<log::EtcdOptions>();
  if (settings.Get("state-dir").has_value()) {
    return absl::InvalidArgumentError(
        "--etcd and --state-dir exclude each other: the state is in one place");
  }
  log::EtcdOptions options;
  options.security.tls_dir = settings.GetOr("etcd-tls-dir", "");
  ASSIGN_OR_RETURN(options.prefix, Prefix(settings, default_prefix));
  for (absl::string_view part : absl::StrSplit(given->value, ',')) {
    part = absl::StripAsciiWhitespace(part);
    const bool tls = absl::ConsumePrefix(&part, "https://");
    const bool clear = !tls && absl::ConsumePrefix(&part, "http://");
    // A word that is no URL would be taken for a host that may come up later.
    if (!tls && !clear) return EtcdFlagError(*given, absl::StrCat("'", part, "' is no URL"));
    if (tls && options.security.tls_dir.empty()) {
      return EtcdFlagError(*given,
                           "https needs --etcd-tls-dir DIR with ca.pem, cert.pem and key.pem");
    }
    if (clear && !options.security.tls_dir.empty()) {
      return EtcdFlagError(*given, "with --etcd-tls-dir the URL begins with https");
    }
    absl::ConsumeSuffix(&part, "/");
    const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(part, kDefaultEtcdPort);
    if (!endpoint.ok()) return EtcdFlagError(*given, endpoint.status().message());
    options.endpoints.push_back(HostPort(endpoint->host, endpoint->port));
  }
  return std::optional<log::EtcdOptions>(std::move(options));
}

}  // namespace cadre::launcher
