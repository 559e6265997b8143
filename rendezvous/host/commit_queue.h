// Keeps the order that core.h demands: the core's records are saved before what it says goes out.
// Effects of one batch of events are saved together. One thread.
//
// While one batch is saved beside the core, effects of the next one are held; that one is not begun
// to be saved before the first is, so that the core is ahead of the disk by two batches at most.
//
// The log is made shorter beside all this: of a state of some 100 MB that takes seconds, in which
// the core would renew no lease.
//
// When they cannot be saved they are held, in order, and tried again; the host then refuses new
// work, so that what is held stays small. Only that a lease was renewed is said meanwhile, where no
// other server can have ended it, and not held at all where one can. When the state is another
// server's (ABORTED) nothing goes out any more.
#ifndef CADRE_RENDEZVOUS_HOST_COMMIT_QUEUE_H_
#define CADRE_RENDEZVOUS_HOST_COMMIT_QUEUE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/time.h"
#include "rendezvous/host/batch_saver.h"
#include "rendezvous/log/record_log.h"
#include "rendezvous/step/effect.h"

namespace cadre::host {

// How often a failing disk is tried again, and a compaction that failed.
inline constexpr absl::Duration kSaveRetry = absl::Milliseconds(250);
inline constexpr absl::Duration kCompactionRetry = absl::Seconds(30);
// Events of one batch whose records are saved together, at most: the first of them waits for the
// last, which is some 10 ms later.
inline constexpr size_t kEventsPerCommit = 2048;

class CommitQueue {
 public:
  struct Host {
    // Sends the effects, whose records are saved.
    std::function<void(Effects)> deliver;
    // Makes fewer records of those that are saved, which give the same state.
    std::function<std::unique_ptr<log::Shortener>()> shortener;
    // A line for the log.
    std::function<void(const std::string&)> say;
    // How long it took to save records.
    std::function<void(absl::Duration)> saved;
  };

  // Without a log nothing is saved, and effects go out at once.
  CommitQueue(std::unique_ptr<log::RecordLog> log, std::unique_ptr<BatchSaver> beside, Host host);

  // Delivers at once when neither these nor earlier effects have to be saved first.
  void Add(MonoTime now, Effects effects);
  // Saves and delivers what is held, all of it.
  void Commit(MonoTime now);
  // Delivers what has been saved since, and begins to save what is held, unless something is still
  // being saved. Waits for that when a whole batch is held (kEventsPerCommit).
  void CommitBeside(MonoTime now);
  bool is_saving() const { return !saving_.empty(); }
  // Waits for what is being saved, and delivers it.
  void AwaitSaved(MonoTime now) { TakeSaved(now, true); }

  // Whether something is held that may be saved now, or is being saved.
  bool WantsCommit() const { return (!held_.empty() || !saving_.empty()) && trouble_.ok(); }
  // OK, or why nothing can be saved at present.
  const absl::Status& trouble() const { return trouble_; }
  // When Commit should be called though nothing else happens.
  MonoTime NextDeadline() const { return trouble_.ok() ? MonoTime::Never() : retry_at_; }

 private:
  // False: something is still being saved.
  bool TakeSaved(MonoTime now, bool wait);
  void Hold(Effects effects);
  void AnswerRenewals(Effects* effects);
  void EnterTrouble(absl::Status why);
  void Deliver(std::vector<Effects>* effects);
  // Not while a batch is being saved.
  void CompactIfDue(MonoTime now);

  const std::unique_ptr<log::RecordLog> log_;
  const std::unique_ptr<BatchSaver> beside_;
  const Host host_;
  // Not handed over yet: what of several events goes out, their records, and how many they are.
  std::vector<Effects> held_;
  log::RecordRows records_;
  size_t events_ = 0;
  // Effects that go out when the records that `beside_` has are saved.
  std::vector<Effects> saving_;
  absl::Status trouble_;
  MonoTime retry_at_;
  MonoTime compact_at_;
  bool compacting_ = false;
};

}  // namespace cadre::host

#endif  // CADRE_RENDEZVOUS_HOST_COMMIT_QUEUE_H_
