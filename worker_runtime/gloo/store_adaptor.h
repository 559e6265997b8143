// Lets Gloo's ranks find each other through a Worker's store.
#ifndef CADRE_WORKER_RUNTIME_GLOO_STORE_ADAPTOR_H_
#define CADRE_WORKER_RUNTIME_GLOO_STORE_ADAPTOR_H_

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/time.h"
#include "gloo/rendezvous/store.h"
#include "worker_runtime/worker.h"

namespace cadre::gloo {

// One rank's list of addresses grows with the world, so values beyond the store's limit are cut
// into parts: key "K#0" holds "COUNT\n" and the first part, "K#1" the second, and so on.
constexpr size_t kStorePartBytes = 60 * 1024;

// Used by one thread. Throws gloo::IoException, as Gloo expects; status() is then the reason.
class StoreAdaptor : public ::gloo::rendezvous::Store {
 public:
  // `worker` must outlive this. All waits together end at `deadline`.
  StoreAdaptor(Worker* worker, std::string prefix, MonoTime deadline);

  void set(const std::string& key, const std::vector<char>& data) override;
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

  const absl::Status& status() const { return status_; }

 private:
  void Check(const absl::Status& status);
  std::string Part(const std::string& key, size_t index) const;
  std::string Fetch(const std::string& full_key);

  Worker* const worker_;
  const std::string prefix_;
  const MonoTime deadline_;
  absl::Status status_;
  // What wait() saw, for the get() that follows.
  std::map<std::string, std::string> first_parts_;
};

}  // namespace cadre::gloo

#endif  // CADRE_WORKER_RUNTIME_GLOO_STORE_ADAPTOR_H_
