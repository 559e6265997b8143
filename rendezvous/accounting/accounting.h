// The accounting of a server: keeps jobs that have ended in a file, and answers questions about
// them. The core's thread only hands over jobs; a thread writes them, and another one reads, each
// with a connection of its own. Thread safe.
//
// If the file cannot be written (the disk is full or fails), jobs wait in a queue of bounded size,
// and those for which there is no room are left out; writing is tried again from time to time. If
// the file is damaged it is moved aside and a new one begun. Each is said in one line of the log,
// and in the answers to questions as long as it lasts.
#ifndef CADRE_RENDEZVOUS_ACCOUNTING_ACCOUNTING_H_
#define CADRE_RENDEZVOUS_ACCOUNTING_ACCOUNTING_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "proto/accounting.pb.h"
#include "rendezvous/accounting/accounting_file.h"

namespace cadre::accounting {

// The bytes of jobs that wait to be written.
inline constexpr size_t kWaitingBytesMax = 64 << 20;
// How many questions may wait, and how long one may take.
inline constexpr size_t kQuestionsMax = 64;
inline constexpr absl::Duration kQuestionLimit = absl::Seconds(5);
// How often writing is tried again after it has failed, and old jobs are looked for.
inline constexpr absl::Duration kWriteRetry = absl::Seconds(5);
inline constexpr absl::Duration kExpiryInterval = absl::Minutes(10);
// How long jobs of the start may wait for room.
inline constexpr absl::Duration kStartLimit = absl::Seconds(30);

struct AccountingOptions {
  std::string path;
  // How long jobs are kept after their end.
  absl::Duration keep = absl::Hours(24 * 365);
  // Receives a line when writing begins to fail and when it works again, on any thread. May be
  // null.
  std::function<void(const std::string&)> log;
  // The wall clock in milliseconds; null: this machine's.
  std::function<int64_t()> unix_ms;
  size_t waiting_bytes_max = kWaitingBytesMax;
  absl::Duration write_retry = kWriteRetry;
  // The limit of the file in pages of 4 KiB; 0: the space of the disk.
  int64_t max_pages = 0;
};

class Accounting {
 public:
  // Opens the file, and blocks for that. If that fails the accounting begins all the same.
  explicit Accounting(AccountingOptions options);
  // Writes what waits, unless that fails.
  ~Accounting();
  Accounting(const Accounting&) = delete;
  Accounting& operator=(const Accounting&) = delete;

  // Returns at once. A job may be added again, as AccountingFile::Write says.
  void Add(std::vector<v1::AccountedJob> jobs);
  // The same for all jobs that the server knows when it begins: waits until there is room.
  void AddAtStart(std::vector<v1::AccountedJob> jobs);
  // Returns once nothing waits to be written, or writing fails.
  void AwaitWritten();

  // `done` is called once, on the reading thread or on this one. Errors: those of the file,
  // DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED (too many questions wait).
  using HistoryDone = std::function<void(absl::StatusOr<v1::HistoryReply>)>;
  void AskHistory(v1::HistoryRequest request, HistoryDone done);
  using UsageDone = std::function<void(absl::StatusOr<v1::UsageReply>)>;
  void AskUsage(v1::UsageRequest request, UsageDone done);

  // Why jobs are not written at present, in one line; empty: they are.
  std::string trouble() const;

 private:
  struct Waiting {
    v1::AccountedJob job;
    size_t bytes = 0;
  };
  using Question = std::function<void(absl::StatusOr<std::unique_ptr<AccountingFile>>)>;

  void Write();
  void Read();
  // Writes jobs, or with none of them opens the file only.
  absl::Status WriteSome(const std::vector<Waiting>& jobs);
  absl::Status OpenFile();
  // Returns whether there may be more of them.
  bool ExpireSome();
  void Ask(Question question, const std::function<void(const absl::Status&)>& refuse);
  void AddLocked(v1::AccountedJob job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Waiting> TakeSome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetTrouble(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void Log(const std::string& line) const;

  const AccountingOptions options_;
  // Used by the writing thread, and before it starts. Null: it could not be opened.
  std::unique_ptr<AccountingFile> file_;

  mutable std::mutex mutex_;
  std::condition_variable to_write_;
  std::condition_variable written_;
  std::condition_variable to_read_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  // Of `waiting_`, and of what is being written.
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  // Jobs for which there was no room since writing began to fail.
  uint64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string trouble_ ABSL_GUARDED_BY(mutex_);
  std::deque<Question> questions_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread writing_;
  std::thread reading_;
};

}  // namespace cadre::accounting

#endif  // CADRE_RENDEZVOUS_ACCOUNTING_ACCOUNTING_H_
