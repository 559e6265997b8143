// cadre, whose server dies at the commit that an order in its environment names.
#include <stdlib.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "launcher/attach/server_state.h"
#include "launcher/cadre_main.h"
#include "tests/faults/kill_at_commit.h"

namespace {

absl::StatusOr<std::unique_ptr<cadre::log::RecordLog>> ByOrder(
    std::unique_ptr<cadre::log::RecordLog> log) {
  const char* const order = getenv(cadre::kKillAtCommit);
  if (order == nullptr) return absl::InvalidArgumentError("there is no order when to die");
  return cadre::KillAtCommit(order, std::move(log));
}

}  // namespace

int main(int argc, char** argv) {
  cadre::launcher::SetLogWrapper(ByOrder);
  return cadre::launcher::CadreMain(argc, argv);
}
