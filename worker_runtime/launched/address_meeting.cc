#include "worker_runtime/launched/address_meeting.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/keyed_digest.h"
#include "base/status_macros.h"
#include "worker_runtime/sockets/endpoint.h"
#include "worker_runtime/store/addresses.h"

namespace cadre::launched {
namespace {

// A machine that has just got its name may not know it yet.
constexpr absl::Duration kNamePatience = absl::Seconds(20);
constexpr absl::Duration kNamePause = absl::Milliseconds(500);

class AddressMeeting : public MeetingPlace {
 public:
  AddressMeeting(const environment::AtAddress& at, const environment::Secret& secret)
      : at_(at),
        leaves_machine_(secret.from_file),
        key_(KeyedDigest(secret.token, "the store at an address")) {}

  Result<Door> Open() override {
    Result<ScopedFd> listener = leaves_machine_ ? ListenAsHost(at_.host, at_.port)
                                                : sockets::Listen(store::kLoopback, at_.port);
    if (listener.ok()) return Door{*std::move(listener), key_};
    return UnavailableError(absl::StrCat("rank 0 cannot serve the others at ",
                                         store::EndpointAt(at_.host, at_.port), ": ",
                                         listener.status().message(),
                                         "; it must be rank 0's own address (MASTER_ADDR) and a "
                                         "port that nothing else uses (MASTER_PORT)"));
  }
  Status Announce(const Door&, const std::string&) override { return OkStatus(); }

  Result<store::StoreAddress> Find() override {
    std::vector<std::string> addresses = {store::kLoopback};
    if (leaves_machine_) {
      Result<std::vector<std::string>> named = store::AddressesOf(at_.host);
      // Some names are known only once rank 0 runs.
      if (!named.ok()) return NotFoundError(named.status().message());
      addresses = *std::move(named);
    }
    // One after the other: a name may mean several.
    return store::StoreAddress{store::EndpointAt(addresses[next_++ % addresses.size()], at_.port),
                               key_};
  }

  absl::Duration RefusalPatience() const override { return absl::ZeroDuration(); }
  std::string Advice() const override {
    return leaves_machine_ ? ""
                           : "; without CADRE_SECRET_FILE only ranks of this machine find each "
                             "other";
  }

 private:
  const environment::AtAddress at_;
  const bool leaves_machine_;
  const std::string key_;
  size_t next_ = 0;
};

}  // namespace

Result<ScopedFd> ListenAsHost(const std::string& host, uint16_t port) {
  Result<std::vector<std::string>> addresses = store::AddressesOf(host);
  const MonoTime deadline = MonoNow() + kNamePatience;
  while (!addresses.ok() && MonoNow() < deadline) {
    absl::SleepFor(kNamePause);
    addresses = store::AddressesOf(host);
  }
  RETURN_IF_ERROR(addresses.status());
  Status why;
  for (const std::string& address : *addresses) {
    // Many machines say of their own name that it is loopback.
    if (store::IsLoopback(address) && !store::NamesLoopback(host)) continue;
    Result<ScopedFd> listener = sockets::Listen(address, port);
    if (listener.ok()) return listener;
    why = listener.status();
  }
  for (const char* every : {"::", "0.0.0.0"}) {
    if (store::NamesLoopback(host)) break;
    Result<ScopedFd> listener = sockets::Listen(every, port);
    if (listener.ok()) return listener;
    if (why.ok()) why = listener.status();
  }
  return why;
}

Result<std::unique_ptr<MeetingPlace>> MeetAtAddress(const environment::AtAddress& at,
                                                    const environment::Secret& secret,
                                                    std::optional<bool> one_node) {
  if (!secret.from_file && !store::NamesLoopback(at.host)) {
    ASSIGN_OR_RETURN(const std::vector<std::string> named, store::AddressesOf(at.host));
    const bool here = std::any_of(named.begin(), named.end(), store::IsOwn);
    if (!here || !one_node.value_or(true)) {
      return FailedPreconditionError(absl::StrCat(
          "CADRE_SECRET_FILE is not set, so the ranks may only meet on one machine, but ",
          here ? absl::StrCat("there are several nodes (rank 0 is on ", at.host, ")")
               : absl::StrCat("rank 0's address, ", at.host, ", is not this machine's"),
          ": set it to a file with the same content on all nodes (\"cadre token new FILE\" makes "
          "one)"));
    }
  }
  return std::unique_ptr<MeetingPlace>(std::make_unique<AddressMeeting>(at, secret));
}

}  // namespace cadre::launched
