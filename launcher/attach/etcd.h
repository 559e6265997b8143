// Which etcd servers share their state in: --etcd and what belongs to it. Pure.
#ifndef CADRE_LAUNCHER_ATTACH_ETCD_H_
#define CADRE_LAUNCHER_ATTACH_ETCD_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "launcher/flags/settings.h"
#include "rendezvous/log/etcd_client.h"

namespace cadre::launcher {

inline constexpr int kDefaultEtcdPort = 2379;
inline constexpr char kDefaultEtcdPrefix[] = "/cadre/server/";

// From --etcd, --etcd-prefix and --etcd-tls-dir; nothing where --etcd is not given.
// INVALID_ARGUMENT names the flag and what was expected.
absl::StatusOr<std::optional<log::EtcdOptions>> EtcdFrom(const Settings& settings,
                                                         const std::string& default_prefix);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_ETCD_H_
