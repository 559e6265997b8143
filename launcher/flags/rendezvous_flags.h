// The flags of `cadre run` about this node and where the nodes meet. Pure.
#ifndef CADRE_LAUNCHER_FLAGS_RENDEZVOUS_FLAGS_H_
#define CADRE_LAUNCHER_FLAGS_RENDEZVOUS_FLAGS_H_

#include <optional>

#include "absl/status/status.h"
#include "launcher/environment/identity.h"
#include "launcher/flags/run_options.h"
#include "launcher/flags/settings.h"

namespace cadre::launcher {

// All: INVALID_ARGUMENT names the flag, or what to say.

absl::Status TakeRendezvousFlags(const Settings& settings, RunOptions& options);
// Settings of the environment that no flag has given.
absl::Status TakeIdentity(const Settings& settings, const Identity& identity, RunOptions& options);
// Once the job is complete: where its nodes meet. Never localhost unless somebody said so.
absl::Status ChooseEndpoint(const Settings& settings, const std::optional<Identity>& identity,
                            RunOptions& options);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_FLAGS_RENDEZVOUS_FLAGS_H_
