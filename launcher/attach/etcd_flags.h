// The etcd in which servers share their state: --etcd and related flags. Pure.
#ifndef CADRE_LAUNCHER_ATTACH_ETCD_FLAGS_H_
#define CADRE_LAUNCHER_ATTACH_ETCD_FLAGS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "launcher/flags/settings.h"
#include "rendezvous/log/etcd_client.h"

namespace cadre::launcher {

inline constexpr int kDefaultEtcdPort = 2379;
inline constexpr char kDefaultEtcdPrefix[] = "/cadre/server/";

// From --etcd, --etcd-prefix and --etcd-tls-dir; nullopt without --etcd. INVALID_ARGUMENT names the
// flag and what was expected.
absl::StatusOr<std::optional<log::EtcdOptions>> EtcdFrom(const Settings& settings,
                                                         const std::string& default_prefix);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ATTACH_ETCD_FLAGS_H_
