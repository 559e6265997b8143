#include "rendezvous/accounting/accounting.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/steady_wait.h"
#include "base/text.h"

namespace cadre::accounting {
namespace {

// The most jobs that one transaction writes or removes.
constexpr size_t kJobsPerWrite = 500;
constexpr int64_t kJobsPerExpiry = 200;

int64_t UnixMs() { return absl::ToUnixMillis(absl::Now()); }

absl::Status InFile(const std::string& path, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat("the accounting in ", path, ": ", why.message()));
}

}  // namespace

Accounting::Accounting(AccountingOptions options)
    : options_([&options] {
        if (!options.unix_ms) options.unix_ms = UnixMs;
        return std::move(options);
      }()) {
  SetTrouble(WriteSome({}));
  writing_ = std::thread([this] { Write(); });
  reading_ = std::thread([this] { Read(); });
}

Accounting::~Accounting() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    to_write_.notify_all();
    to_read_.notify_all();
    written_.notify_all();
  }
  writing_.join();
  reading_.join();
}

void Accounting::AddLocked(v1::AccountedJob job) {
  const size_t bytes = job.ByteSizeLong() + sizeof(Waiting);
  // A job alone is always taken.
  if (waiting_bytes_ > 0 && waiting_bytes_ + bytes > options_.waiting_bytes_max) {
    ++left_out_;
    return;
  }
  waiting_bytes_ += bytes;
  waiting_.push_back({std::move(job), bytes});
}

void Accounting::Add(std::vector<v1::AccountedJob> jobs) {
  uint64_t left_out = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t before = left_out_;
    for (v1::AccountedJob& job : jobs) AddLocked(std::move(job));
    to_write_.notify_all();
    // Said once; how many they were is said when writing works again.
    if (before == 0) left_out = left_out_;
  }
  if (left_out == 0) return;
  Log(absl::StrCat("the accounting in ", options_.path, " cannot be written as fast as jobs end: ",
                   "those that end now are left out of it, and run as before"));
}

void Accounting::AddAtStart(std::vector<v1::AccountedJob> jobs) {
  const MonoTime end = MonoNow() + kStartLimit;
  for (v1::AccountedJob& job : jobs) {
    std::unique_lock<std::mutex> lock(mutex_);
    // A queue that is half full leaves room for the jobs that end meanwhile.
    WaitFor(written_, lock, end - MonoNow(), [&] {
      return stopping_ || !trouble_.empty() || waiting_bytes_ < options_.waiting_bytes_max / 2;
    });
    AddLocked(std::move(job));
    to_write_.notify_all();
  }
}

void Accounting::AwaitWritten() {
  std::unique_lock<std::mutex> lock(mutex_);
  written_.wait(lock, [&] { return (waiting_.empty() && !is_writing_) || !trouble_.empty(); });
}

std::vector<Accounting::Waiting> Accounting::TakeSome() {
  const size_t count = std::min(waiting_.size(), kJobsPerWrite);
  const auto end = waiting_.begin() + static_cast<ptrdiff_t>(count);
  std::vector<Waiting> some(std::make_move_iterator(waiting_.begin()),
                            std::make_move_iterator(end));
  waiting_.erase(waiting_.begin(), end);
  return some;
}

void Accounting::Write() {
  bool failed = false;
  MonoTime retry_at, expire_at;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    const bool last = stopping_;
    if (last && waiting_.empty()) return;
    const MonoTime now = MonoNow();
    const bool wants_to = !failed && !waiting_.empty();
    const MonoTime due = last || wants_to ? now : failed ? retry_at : expire_at;
    if (now < due) {
      WaitFor(to_write_, lock, due - now,
              [&] { return stopping_ || (!failed && !waiting_.empty()); });
      continue;
    }
    std::vector<Waiting> jobs = TakeSome();
    is_writing_ = true;
    lock.unlock();
    const absl::Status status = WriteSome(jobs);
    // Old jobs make room for new ones.
    const bool expires = now >= expire_at || absl::IsResourceExhausted(status);
    if (expires && !ExpireSome()) expire_at = now + kExpiryInterval;
    SetTrouble(status);
    lock.lock();
    is_writing_ = false;
    failed = !status.ok();
    if (failed) {
      retry_at = MonoNow() + options_.write_retry;
      // They go in front of those that came later.
      waiting_.insert(waiting_.begin(), std::make_move_iterator(jobs.begin()),
                      std::make_move_iterator(jobs.end()));
    } else {
      for (const Waiting& job : jobs) waiting_bytes_ -= job.bytes;
    }
    written_.notify_all();
    // What the state still has is added again when the server is started again.
    if (failed && last) return;
  }
}

absl::Status Accounting::OpenFile() {
  if (file_ != nullptr) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<AccountingFile>> file =
      AccountingFile::Open(options_.path, options_.max_pages);
  if (file.ok()) file_ = *std::move(file);
  return file.status();
}

absl::Status Accounting::WriteSome(const std::vector<Waiting>& jobs) {
  std::vector<const v1::AccountedJob*> rows;
  rows.reserve(jobs.size());
  for (const Waiting& one : jobs) rows.push_back(&one.job);
  absl::Status status;
  for (int times = 0; times < 2; ++times) {
    status = OpenFile();
    if (status.ok() && !rows.empty()) status = file_->Write(rows);
    if (!absl::IsDataLoss(status)) return status;
    file_.reset();
    const absl::StatusOr<std::string> aside = MoveAside(options_.path, options_.unix_ms());
    if (!aside.ok()) return aside.status();
    Log(absl::StrCat("the accounting in ", options_.path, " is damaged (", status.message(),
                     "): it is kept as ", *aside,
                     ", and a new one begins with the jobs that the "
                     "server still knows when it is started again"));
  }
  return status;
}

bool Accounting::ExpireSome() {
  if (file_ == nullptr) return false;
  const int64_t before = options_.unix_ms() - absl::ToInt64Milliseconds(options_.keep);
  const absl::StatusOr<int64_t> expired = file_->Expire(before, kJobsPerExpiry);
  return expired.ok() && *expired == kJobsPerExpiry;
}

void Accounting::SetTrouble(const absl::Status& why) {
  const std::string text = why.ok() ? ""
                                    : absl::StrCat("the accounting in ", options_.path,
                                                   " cannot be written: ", why.message());
  uint64_t left_out = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (trouble_ == text && (!why.ok() || left_out_ == 0)) return;
    trouble_ = text;
    if (why.ok()) left_out = std::exchange(left_out_, 0);
  }
  if (!why.ok()) {
    return Log(absl::StrCat(text,
                            "; jobs run as before, and those that end are written later as far "
                            "as there is room for them"));
  }
  Log(absl::StrCat("the accounting in ", options_.path, " is written again",
                   left_out == 0 ? ""
                                 : absl::StrCat("; ", Count(left_out, "job"),
                                                " that ended meanwhile may be missing")));
}

std::string Accounting::trouble() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return trouble_;
}

void Accounting::Log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

// --- questions ---

void Accounting::Ask(Question question, const std::function<void(const absl::Status&)>& refuse) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (questions_.size() < kQuestionsMax && !stopping_) {
      questions_.push_back(std::move(question));
      return to_read_.notify_all();
    }
  }
  refuse(absl::ResourceExhaustedError(
      "the server is busy with other questions about its accounting; ask again in a moment"));
}

void Accounting::AskHistory(v1::HistoryRequest request, HistoryDone done) {
  Ask(
      [this, request = std::move(request),
       done](absl::StatusOr<std::unique_ptr<AccountingFile>> file) {
        if (!file.ok()) return done(InFile(options_.path, file.status()));
        absl::StatusOr<v1::HistoryReply> reply = (*file)->History(request);
        if (!reply.ok()) return done(InFile(options_.path, reply.status()));
        reply->set_trouble(trouble());
        done(std::move(reply));
      },
      done);
}

void Accounting::AskUsage(v1::UsageRequest request, UsageDone done) {
  Ask(
      [this, request = std::move(request),
       done](absl::StatusOr<std::unique_ptr<AccountingFile>> file) {
        if (!file.ok()) return done(InFile(options_.path, file.status()));
        absl::StatusOr<v1::UsageReply> reply = (*file)->Usage(request);
        if (!reply.ok()) return done(InFile(options_.path, reply.status()));
        reply->set_trouble(trouble());
        done(std::move(reply));
      },
      done);
}

void Accounting::Read() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    to_read_.wait(lock, [this] { return stopping_ || !questions_.empty(); });
    // Those that wait are answered before the end, because their callers wait for that.
    if (questions_.empty()) return;
    const Question question = std::move(questions_.front());
    questions_.pop_front();
    lock.unlock();
    const MonoTime end = MonoNow() + kQuestionLimit;
    // Opened for each, because the file may have been moved aside since the last.
    absl::StatusOr<std::unique_ptr<AccountingFile>> file =
        AccountingFile::OpenToRead(options_.path);
    if (file.ok()) (*file)->StopIf([end] { return MonoNow() > end; });
    question(std::move(file));
    lock.lock();
  }
}

}  // namespace cadre::accounting
