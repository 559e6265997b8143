#include "rendezvous/accounting/accounting_file.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "rendezvous/accounting/rows.h"
#include "rpc/job_progress.h"

namespace cadre::accounting {
namespace {

// "CDRA": it distinguishes our file from other programs'.
constexpr int64_t kApplicationId = 0x43445241;
constexpr int64_t kFormat = 1;

// `job` is a v1::AccountedJob; the other columns are copies of its fields, to search and to sum.
// `from_ms` is when it came: its submission, or its begin. `whole`: it has given back all nodes.
constexpr char kSchema[] =
    "CREATE TABLE jobs(seq INTEGER PRIMARY KEY, server_id INTEGER, ended_order INTEGER,"
    " id INTEGER, step_of INTEGER, array INTEGER, name TEXT, user TEXT, phase TEXT, cause TEXT,"
    " from_ms INTEGER, ended_ms INTEGER, held_us INTEGER, cpu_us INTEGER, gpu_us INTEGER,"
    " whole INTEGER, job BLOB, UNIQUE(server_id, ended_order));"
    "CREATE INDEX jobs_by_id ON jobs(id);"
    "CREATE INDEX jobs_by_step_of ON jobs(step_of) WHERE step_of != 0;"
    "CREATE INDEX jobs_by_array ON jobs(array) WHERE array != 0;"
    "CREATE INDEX jobs_by_end ON jobs(ended_ms);"
    "CREATE INDEX jobs_by_user ON jobs(user, ended_ms);"
    "CREATE TABLE node_use(seq INTEGER, node TEXT, held_us INTEGER, cpu_us INTEGER,"
    " gpu_us INTEGER, PRIMARY KEY(seq, node)) WITHOUT ROWID;"
    "CREATE TABLE lost(seq INTEGER, cause TEXT, wasted INTEGER, cpu_us INTEGER, gpu_us INTEGER,"
    " failures INTEGER, PRIMARY KEY(seq, cause, wasted)) WITHOUT ROWID;";

int64_t Signed(uint64_t number) { return static_cast<int64_t>(number); }

int64_t CameAt(const v1::AccountedJob& job) {
  if (job.submitted_unix_ms() != 0) return job.submitted_unix_ms();
  return job.began_unix_ms() != 0 ? job.began_unix_ms() : job.ended_unix_ms();
}

int64_t EndOf(int64_t until_unix_ms) {
  return until_unix_ms == 0 ? std::numeric_limits<int64_t>::max() : until_unix_ms;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AccountingFile>> AccountingFile::Open(const std::string& path,
                                                                     int64_t max_pages) {
  ASSIGN_OR_RETURN(std::unique_ptr<log::SqliteFile> sqlite,
                   log::SqliteFile::Open(path, max_pages, log::SqliteUse::kShared));
  std::unique_ptr<AccountingFile> file(new AccountingFile(std::move(sqlite)));
  RETURN_IF_ERROR(file->CheckFormat(true));
  return file;
}

absl::StatusOr<std::unique_ptr<AccountingFile>> AccountingFile::OpenToRead(
    const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<log::SqliteFile> sqlite,
                   log::SqliteFile::Open(path, 0, log::SqliteUse::kReadOnly));
  std::unique_ptr<AccountingFile> file(new AccountingFile(std::move(sqlite)));
  RETURN_IF_ERROR(file->CheckFormat(false));
  return file;
}

absl::Status AccountingFile::CheckFormat(bool may_create) {
  ASSIGN_OR_RETURN(const int64_t tables, file_->Number("SELECT count(*) FROM sqlite_schema"));
  if (tables == 0 && may_create) {
    return file_->Transact([&]() -> absl::Status {
      RETURN_IF_ERROR(file_->Execute(kSchema));
      return file_->Execute(
          absl::StrCat("PRAGMA application_id=", kApplicationId, "; PRAGMA user_version=", kFormat)
              .c_str());
    });
  }
  ASSIGN_OR_RETURN(const int64_t application, file_->Number("PRAGMA application_id"));
  if (application != kApplicationId) {
    return absl::FailedPreconditionError("it belongs to another program");
  }
  ASSIGN_OR_RETURN(const int64_t format, file_->Number("PRAGMA user_version"));
  if (format != kFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat("it has format ", format, " of another version of cadre, and this one uses ",
                     "format ", kFormat));
  }
  // Reading fails if a table is missing.
  for (const char* const table : {"SELECT count(*) FROM (SELECT job FROM jobs LIMIT 1)",
                                  "SELECT count(*) FROM (SELECT seq FROM node_use LIMIT 1)",
                                  "SELECT count(*) FROM (SELECT seq FROM lost LIMIT 1)"}) {
    RETURN_IF_ERROR(file_->Number(table).status());
  }
  return absl::OkStatus();
}

absl::Status AccountingFile::Write(const std::vector<const v1::AccountedJob*>& jobs) {
  return file_->Transact([&]() -> absl::Status {
    for (const v1::AccountedJob* job : jobs) RETURN_IF_ERROR(WriteOne(*job));
    return absl::OkStatus();
  });
}

absl::Status AccountingFile::WriteOne(v1::AccountedJob job) {
  const int64_t server = Signed(job.server_id()), order = Signed(job.ended_order());
  int64_t seq = 0;
  bool whole = false;
  v1::AccountedJob before;
  RETURN_IF_ERROR(
      file_->Run("SELECT seq, whole, job FROM jobs WHERE server_id=?1 AND ended_order=?2",
                 {server, order}, [&](sqlite3_stmt* row) {
                   seq = sqlite3_column_int64(row, 0);
                   whole = sqlite3_column_int64(row, 1) != 0;
                   const absl::string_view bytes = log::ColumnBytes(row, 2);
                   before.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
                 }));
  if (whole) return absl::OkStatus();
  if (seq != 0) {
    // What only its allocations told, which have ended since.
    if (job.memory() == 0) job.set_memory(before.memory());
    if (job.workers() == 0) job.set_workers(before.workers());
    RETURN_IF_ERROR(Remove(seq));
  } else {
    ASSIGN_OR_RETURN(const int64_t last, file_->Number("SELECT ifnull(max(seq), 0) FROM jobs"));
    seq = last + 1;
  }
  RETURN_IF_ERROR(file_->Run(
      "INSERT INTO jobs VALUES(?1, ?2, ?3, ?4, ?5, ?6, CAST(?7 AS TEXT), CAST(?8 AS TEXT),"
      " CAST(?9 AS TEXT), CAST(?10 AS TEXT), ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
      {seq, server, order, Signed(job.id()), Signed(job.step_of()), Signed(job.array()),
       absl::string_view(job.name()), absl::string_view(job.user()), rpc::PhaseName(job.phase()),
       CauseWord(job.cause()), CameAt(job), int64_t{job.ended_unix_ms()}, int64_t{job.held_us()},
       int64_t{job.cpu_us()}, int64_t{job.gpu_us()}, int64_t{job.holds_nodes() ? 0 : 1},
       job.SerializeAsString()}));
  for (const v1::NodeUse& use : job.node_uses()) {
    RETURN_IF_ERROR(file_->Run("INSERT INTO node_use VALUES(?1, CAST(?2 AS TEXT), ?3, ?4, ?5)",
                               {seq, absl::string_view(use.node()), int64_t{use.held_us()},
                                int64_t{use.cpu_us()}, int64_t{use.gpu_us()}}));
  }
  for (const v1::LostTime& lost : job.lost()) {
    RETURN_IF_ERROR(
        file_->Run("INSERT OR REPLACE INTO lost VALUES(?1, CAST(?2 AS TEXT), ?3, ?4, ?5, ?6)",
                   {seq, CauseWord(lost.cause()), int64_t{lost.wasted() ? 1 : 0},
                    int64_t{lost.cpu_us()}, int64_t{lost.gpu_us()}, int64_t{lost.failures()}}));
  }
  return absl::OkStatus();
}

absl::Status AccountingFile::Remove(int64_t seq) {
  RETURN_IF_ERROR(file_->Run("DELETE FROM jobs WHERE seq=?1", {seq}));
  RETURN_IF_ERROR(file_->Run("DELETE FROM node_use WHERE seq=?1", {seq}));
  return file_->Run("DELETE FROM lost WHERE seq=?1", {seq});
}

absl::StatusOr<int64_t> AccountingFile::Expire(int64_t before_unix_ms, int64_t at_most) {
  std::vector<int64_t> old;
  RETURN_IF_ERROR(file_->Run("SELECT seq FROM jobs WHERE ended_ms < ?1 ORDER BY ended_ms LIMIT ?2",
                             {before_unix_ms, at_most}, [&](sqlite3_stmt* row) {
                               old.push_back(sqlite3_column_int64(row, 0));
                             }));
  if (old.empty()) return 0;
  RETURN_IF_ERROR(file_->Transact([&]() -> absl::Status {
    for (const int64_t seq : old) {
      RETURN_IF_ERROR(Remove(seq));
    }
    return absl::OkStatus();
  }));
  return static_cast<int64_t>(old.size());
}

// --- the history ---

namespace {

// Collects the jobs that a request wants, newest first.
class Collector {
 public:
  explicit Collector(const v1::HistoryRequest& request)
      : request_(request),
        users_(request.users().begin(), request.users().end()),
        names_(request.names().begin(), request.names().end()),
        ids_(request.ids().begin(), request.ids().end()),
        limit_(request.limit() == 0 ? kHistoryJobsMax
                                    : std::min(request.limit(), kHistoryJobsMax)) {
    for (const int phase : request.phases()) phases_.insert(phase);
  }

  bool is_full() const { return reply_.more(); }
  void Add(int64_t seq, absl::string_view bytes) {
    v1::AccountedJob job;
    if (is_full() || seen_.count(seq) != 0 ||
        !job.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || !Wants(job)) {
      return;
    }
    if (reply_.jobs_size() >= static_cast<int>(limit_) || bytes_ > kHistoryBytesMax) {
      return reply_.set_more(true);
    }
    seen_.insert(seq);
    if (!request_.node_uses()) job.clear_node_uses();
    bytes_ += job.ByteSizeLong();
    *reply_.add_jobs() = std::move(job);
  }
  v1::HistoryReply Take() {
    std::sort(reply_.mutable_jobs()->begin(), reply_.mutable_jobs()->end(),
              [](const v1::AccountedJob& a, const v1::AccountedJob& b) {
                return std::make_pair(a.ended_unix_ms(), a.ended_order()) >
                       std::make_pair(b.ended_unix_ms(), b.ended_order());
              });
    return std::move(reply_);
  }

 private:
  template <typename Value>
  static bool Fits(const std::set<Value>& wanted, const Value& value) {
    return wanted.empty() || wanted.count(value) != 0;
  }
  bool Wants(const v1::AccountedJob& job) const {
    const bool by_id =
        ids_.count(job.id()) != 0 || ids_.count(job.array()) != 0 || ids_.count(job.step_of()) != 0;
    if (!ids_.empty() && !by_id) return false;
    // A step that is named itself is wanted without the others.
    if (job.step_of() != 0 && !request_.steps() && ids_.count(job.id()) == 0) return false;
    return Fits(users_, job.user()) && Fits(names_, job.name()) &&
           Fits(phases_, static_cast<int>(job.phase())) &&
           job.ended_unix_ms() >= request_.since_unix_ms() &&
           CameAt(job) <= EndOf(request_.until_unix_ms());
  }

  const v1::HistoryRequest& request_;
  const std::set<std::string> users_;
  const std::set<std::string> names_;
  const std::set<uint64_t> ids_;
  std::set<int> phases_;
  const uint32_t limit_;
  std::set<int64_t> seen_;
  size_t bytes_ = 0;
  v1::HistoryReply reply_;
};

}  // namespace

absl::StatusOr<v1::HistoryReply> AccountingFile::History(const v1::HistoryRequest& request) {
  Collector collector(request);
  if (!request.ids().empty()) {
    for (const uint64_t id : request.ids()) {
      if (id == 0) continue;
      RETURN_IF_ERROR(
          file_->Run("SELECT seq, job FROM jobs WHERE id=?1 OR (step_of=?1 AND step_of != 0)"
                     " OR (array=?1 AND array != 0) ORDER BY ended_ms DESC, seq DESC",
                     {Signed(id)}, [&](sqlite3_stmt* row) {
                       collector.Add(sqlite3_column_int64(row, 0), log::ColumnBytes(row, 1));
                     }));
    }
    return collector.Take();
  }
  // In pages, because a statement cannot be left before its end.
  constexpr int64_t kPage = 256;
  const bool one_user = request.users_size() == 1;
  int64_t ended_ms = std::numeric_limits<int64_t>::max();
  int64_t seq = std::numeric_limits<int64_t>::max();
  for (int64_t rows = kPage; rows == kPage && !collector.is_full();) {
    rows = 0;
    const auto add = [&](sqlite3_stmt* row) {
      ++rows;
      seq = sqlite3_column_int64(row, 0);
      ended_ms = sqlite3_column_int64(row, 2);
      collector.Add(seq, log::ColumnBytes(row, 1));
    };
    const int64_t since = request.since_unix_ms();
    if (one_user) {
      RETURN_IF_ERROR(file_->Run(
          "SELECT seq, job, ended_ms FROM jobs WHERE user=CAST(?5 AS TEXT) AND ended_ms >= ?1"
          " AND ended_ms <= ?2 AND (ended_ms, seq) < (?2, ?3)"
          " ORDER BY ended_ms DESC, seq DESC LIMIT ?4",
          {since, ended_ms, seq, kPage, absl::string_view(request.users(0))}, add));
    } else {
      RETURN_IF_ERROR(
          file_->Run("SELECT seq, job, ended_ms FROM jobs WHERE ended_ms >= ?1"
                     " AND ended_ms <= ?2 AND (ended_ms, seq) < (?2, ?3)"
                     " ORDER BY ended_ms DESC, seq DESC LIMIT ?4",
                     {since, ended_ms, seq, kPage}, add));
    }
  }
  return collector.Take();
}

// --- sums ---

namespace {

// How jobs are grouped. '$' stands for the job whose group it is.
struct Grouping {
  const char* key;
  const char* join;
  // The group's share of the job's lost time.
  const char* cpu_share;
  const char* gpu_share;
};

constexpr Grouping kAll = {"''", "", "1", "1"};
constexpr Grouping kByUser = {"$.user", "", "1", "1"};
constexpr Grouping kByNode = {"n.node", "JOIN node_use n ON n.seq=$.seq",
                              "(CASE WHEN $.cpu_us=0 THEN 0 ELSE 1.0*n.cpu_us/$.cpu_us END)",
                              "(CASE WHEN $.gpu_us=0 THEN 0 ELSE 1.0*n.gpu_us/$.gpu_us END)"};
// By the cause of the lost time, and for a job that failed by its own.
constexpr Grouping kByCause = {"l.cause", "", "1", "1"};
constexpr Grouping kByDay = {"($.ended_ms + ?3) / 86400000", "", "1", "1"};

std::string For(absl::string_view job, absl::string_view text) {
  return absl::StrReplaceAll(text, {{"$", job}});
}

constexpr char kInTime[] = "$.ended_ms >= ?1 AND $.ended_ms < ?2 AND ?3 IS NOT NULL";

// The statements of one grouping. They are kept for good, because SqliteFile knows statements by
// their address.
struct Statements {
  explicit Statements(const Grouping& by, bool of_node, bool of_cause)
      : used(absl::StrCat("SELECT ", For("j", of_cause ? "$.cause" : by.key),
                          ", count(*), sum(j.phase='failed'), sum(", of_node ? "n" : "j",
                          ".held_us), sum(", of_node ? "n" : "j", ".cpu_us), sum(",
                          of_node ? "n" : "j", ".gpu_us) FROM jobs j ", For("j", by.join),
                          " WHERE j.step_of=0 AND ", For("j", kInTime),
                          of_cause ? " AND j.phase='failed'" : "", " GROUP BY 1")),
        lost(absl::StrCat("SELECT ", For("j", by.key), ", sum(l.failures), sum(l.cpu_us*",
                          For("j", by.cpu_share), "), sum(l.gpu_us*", For("j", by.gpu_share),
                          ") FROM jobs j JOIN lost l ON l.seq=j.seq ", For("j", by.join),
                          " WHERE l.wasted=0 AND ", For("j", kInTime), " GROUP BY 1")),
        // What a step wasted is a part of what its batch job wasted if that failed too.
        wasted(absl::StrCat("SELECT ", For("j", by.key), ", sum(l.cpu_us*", For("j", by.cpu_share),
                            "), sum(l.gpu_us*", For("j", by.gpu_share),
                            ") FROM jobs j JOIN lost l ON l.seq=j.seq ", For("j", by.join),
                            " WHERE l.wasted=1 AND ", For("j", kInTime),
                            " AND (j.step_of=0 OR NOT EXISTS(SELECT 1 FROM jobs b WHERE"
                            " b.server_id=j.server_id AND b.id=j.step_of AND b.phase='failed'))"
                            " GROUP BY 1")),
        // And what it lost by failures is taken off what that has wasted.
        lost_in_failed(absl::StrCat(
            "SELECT ", For("b", of_cause ? "$.cause" : by.key), ", sum(l.cpu_us*",
            For("b", by.cpu_share), "), sum(l.gpu_us*", For("b", by.gpu_share),
            ") FROM jobs j JOIN jobs b ON b.server_id=j.server_id AND b.id=j.step_of"
            " JOIN lost l ON l.seq=j.seq ",
            For("b", by.join), " WHERE l.wasted=0 AND j.step_of != 0 AND b.phase='failed' AND ",
            For("b", kInTime), " GROUP BY 1")) {}

  const std::string used;
  const std::string lost;
  const std::string wasted;
  const std::string lost_in_failed;
};

const Statements& StatementsOf(v1::UsageRequest::Grouping by) {
  static const auto* const by_user = new Statements(kByUser, false, false);
  static const auto* const by_node = new Statements(kByNode, true, false);
  static const auto* const by_cause = new Statements(kByCause, false, true);
  static const auto* const by_day = new Statements(kByDay, false, false);
  switch (by) {
    case v1::UsageRequest::NODE:
      return *by_node;
    case v1::UsageRequest::CAUSE:
      return *by_cause;
    case v1::UsageRequest::DAY:
      return *by_day;
    default:
      return *by_user;
  }
}

const Statements& StatementsOfAll() {
  static const auto* const all = new Statements(kAll, false, false);
  return *all;
}

// By key.
using Sums = std::map<std::string, v1::UsageSum>;

absl::StatusOr<Sums> SumsOf(log::SqliteFile& file, const v1::UsageRequest& request,
                            const Statements& statements) {
  Sums sums;
  const int64_t since = request.since_unix_ms(), until = EndOf(request.until_unix_ms());
  const int64_t zone_ms = int64_t{request.zone_offset_s()} * 1000;
  const auto sum_of = [&](sqlite3_stmt* row) {
    return &sums[std::string(log::ColumnBytes(row, 0))];
  };
  RETURN_IF_ERROR(
      file.Run(statements.used.c_str(), {since, until, zone_ms}, [&](sqlite3_stmt* row) {
        v1::UsageSum* sum = sum_of(row);
        sum->set_jobs(static_cast<uint64_t>(sqlite3_column_int64(row, 1)));
        sum->set_failed(static_cast<uint64_t>(sqlite3_column_int64(row, 2)));
        sum->set_held_us(sqlite3_column_int64(row, 3));
        sum->set_cpu_us(sqlite3_column_int64(row, 4));
        sum->set_gpu_us(sqlite3_column_int64(row, 5));
      }));
  RETURN_IF_ERROR(
      file.Run(statements.lost.c_str(), {since, until, zone_ms}, [&](sqlite3_stmt* row) {
        v1::UsageSum* sum = sum_of(row);
        sum->set_failures(static_cast<uint64_t>(sqlite3_column_int64(row, 1)));
        sum->set_lost_cpu_us(sqlite3_column_int64(row, 2));
        sum->set_lost_gpu_us(sqlite3_column_int64(row, 3));
      }));
  RETURN_IF_ERROR(
      file.Run(statements.wasted.c_str(), {since, until, zone_ms}, [&](sqlite3_stmt* row) {
        v1::UsageSum* sum = sum_of(row);
        sum->set_wasted_cpu_us(sqlite3_column_int64(row, 1));
        sum->set_wasted_gpu_us(sqlite3_column_int64(row, 2));
      }));
  RETURN_IF_ERROR(
      file.Run(statements.lost_in_failed.c_str(), {since, until, zone_ms}, [&](sqlite3_stmt* row) {
        v1::UsageSum* sum = sum_of(row);
        sum->set_wasted_cpu_us(
            std::max<int64_t>(sum->wasted_cpu_us() - sqlite3_column_int64(row, 1), 0));
        sum->set_wasted_gpu_us(
            std::max<int64_t>(sum->wasted_gpu_us() - sqlite3_column_int64(row, 2), 0));
      }));
  return sums;
}

// "2026-11-30" for the number of days since 1970-01-01.
std::string DayText(const std::string& days) {
  return absl::FormatCivilTime(absl::CivilDay(1970, 1, 1) + strtoll(days.c_str(), nullptr, 10));
}

}  // namespace

absl::StatusOr<v1::UsageReply> AccountingFile::Usage(const v1::UsageRequest& request) {
  ASSIGN_OR_RETURN(Sums all, SumsOf(*file_, request, StatementsOfAll()));
  ASSIGN_OR_RETURN(Sums sums, SumsOf(*file_, request, StatementsOf(request.by())));
  std::vector<v1::UsageSum> sorted;
  for (auto& [key, sum] : sums) {
    sum.set_key(request.by() == v1::UsageRequest::DAY ? DayText(key) : key);
    if (request.by() == v1::UsageRequest::CAUSE) {
      // What ran for a cause is no sum of its own.
      sum.clear_held_us();
      sum.clear_cpu_us();
      sum.clear_gpu_us();
    }
    sorted.push_back(std::move(sum));
  }
  const auto weight = [](const v1::UsageSum& sum) {
    return std::make_pair(sum.gpu_us() + sum.lost_gpu_us() + sum.wasted_gpu_us(),
                          sum.cpu_us() + sum.lost_cpu_us() + sum.wasted_cpu_us());
  };
  if (request.by() == v1::UsageRequest::DAY) {
    std::sort(sorted.begin(), sorted.end(),
              [](const auto& a, const auto& b) { return a.key() < b.key(); });
  } else {
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](const auto& a, const auto& b) { return weight(a) > weight(b); });
  }
  v1::UsageReply reply;
  reply.set_more(sorted.size() > static_cast<size_t>(kUsageRowsMax));
  if (reply.more()) sorted.resize(kUsageRowsMax);
  for (v1::UsageSum& sum : sorted) *reply.add_sums() = std::move(sum);
  *reply.mutable_total() = std::move(all[""]);
  return reply;
}

absl::StatusOr<std::string> MoveAside(const std::string& path, int64_t now_unix_ms) {
  const std::string aside = absl::StrCat(
      path, ".damaged-",
      absl::FormatTime("%Y%m%dT%H%M%SZ", absl::FromUnixMillis(now_unix_ms), absl::UTCTimeZone()));
  for (const char* const end : {"", "-wal", "-shm"}) {
    if (rename((path + end).c_str(), (aside + end).c_str()) != 0 && errno != ENOENT) {
      return absl::UnavailableError(
          absl::StrCat("cannot rename ", path, end, ": ", strerror(errno)));
    }
  }
  return aside;
}

}  // namespace cadre::accounting
