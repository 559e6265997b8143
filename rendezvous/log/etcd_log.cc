#include "rendezvous/log/etcd_log.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "rendezvous/log/etcd_client.h"
#include "rendezvous/log/record_log.h"

namespace cadre::log {
namespace {

// The log is compacted when it is this many times as large as the last snapshot.
constexpr uint64_t kCompactionFactor = 3;
// With pieces of the largest size a page has 16 MiB.
constexpr int64_t kPiecesPerPage = 16;
// The distance from the end of the log to the keys of a snapshot that is written while the log
// grows.
constexpr uint64_t kSnapshotDistance = uint64_t{1} << 32;

class EtcdLog final : public RecordLog {
 public:
  explicit EtcdLog(EtcdLogOptions options)
      : options_(std::move(options)), head_key_(absl::StrCat(options_.prefix, "head")) {}

  absl::Status Open(std::vector<v1::Record>* records) {
    ASSIGN_OR_RETURN(head_, ReadHead());
    if (head_.server_id() == 0) {
      head_.set_format(kStateFormat);
      head_.set_server_id(options_.new_server_id);
      head_.set_first(1);
      head_.set_next(1);
    }
    RETURN_IF_ERROR(CheckStateFormat(absl::StrCat("the state in etcd under ", options_.prefix),
                                     head_.format(),
                                     "give another --etcd-prefix to begin with an empty state"));
    // Erases what an earlier leader left unfinished.
    etcdserverpb::TxnRequest request = Guarded(head_);
    Erase(head_.next(), UINT64_MAX, &request);
    RETURN_IF_ERROR(Write(request));
    return ReadRecords(records);
  }

  uint64_t server_id() const override { return head_.server_id(); }

  absl::Status Append(const RecordRows& records) override {
    const std::vector<std::string> pieces = Cut(records);
    ++appends_;
    const absl::MutexLock lock(&mutex_);
    --appends_;
    RETURN_IF_ERROR(ResolveUncertainWrite());
    v1::EtcdLogHead next = head_;
    next.set_next(head_.next() + pieces.size());
    next.set_log_bytes(head_.log_bytes() + BytesOf(pieces));
    return WritePieces(pieces, next);
  }

  bool WantsCompaction() const override {
    const absl::MutexLock lock(&mutex_);
    return head_.log_bytes() >
           std::max(kEtcdCompactionBytesMin, kCompactionFactor * head_.snapshot_bytes());
  }

  // The snapshot is written far behind the end of the log, where it is not valid until the head
  // points to it. Records appended meanwhile are copied behind it. Then the head is moved.
  absl::Status Compact(Compactor& compactor, const std::atomic<bool>& stop) override {
    uint64_t first = 0, end = 0;
    RETURN_IF_ERROR(Step(stop, [&] {
      first = head_.first();
      end = head_.next();
      // Erases what an unfinished compaction left.
      etcdserverpb::TxnRequest request = Guarded(head_);
      Erase(end, UINT64_MAX, &request);
      return Write(request);
    }));
    RETURN_IF_ERROR(FeedAll(first, end, compactor, stop));
    const uint64_t begin = end + kSnapshotDistance;
    uint64_t next = begin;
    uint64_t bytes = 0;
    const auto write = [&](const std::string& piece) -> absl::Status {
      RETURN_IF_ERROR(Step(stop, [&] {
        etcdserverpb::TxnRequest request = Guarded(head_);
        PutKey(PieceKey(next), piece, 0, request.add_success());
        return Write(request);
      }));
      ++next;
      bytes += piece.size();
      return absl::OkStatus();
    };
    const RecordRows snapshot = compactor.Take();
    for (const RecordRows::Row& row : snapshot.rows()) {
      for (const std::string& piece : CutBytes(row.bytes)) RETURN_IF_ERROR(write(piece));
    }
    const uint64_t snapshot_bytes = bytes;
    for (;;) {
      std::vector<std::string> tail;
      RETURN_IF_ERROR(Step(stop, [&]() -> absl::Status {
        if (first != head_.first())
          return CannotSave(absl::UnavailableError("another compaction has replaced the log"));
        ASSIGN_OR_RETURN(tail, ReadPieces(end, 1));
        if (!tail.empty()) return absl::OkStatus();
        v1::EtcdLogHead moved = head_;
        moved.set_first(begin);
        moved.set_next(next);
        moved.set_log_bytes(bytes);
        moved.set_snapshot_bytes(snapshot_bytes);
        etcdserverpb::TxnRequest request = Guarded(moved);
        Erase(first, end, &request);
        RETURN_IF_ERROR(Write(request));
        head_ = moved;
        return absl::OkStatus();
      }));
      if (tail.empty()) return absl::OkStatus();
      RETURN_IF_ERROR(write(tail[0]));
      ++end;
    }
  }

 private:
  std::string PieceKey(uint64_t number) const {
    return absl::StrCat(options_.prefix, "log/", absl::Hex(number, absl::kZeroPad16));
  }

  static uint64_t BytesOf(const std::vector<std::string>& pieces) {
    uint64_t bytes = 0;
    for (const std::string& piece : pieces) bytes += piece.size();
    return bytes;
  }

  // Splits the batch into values of keys.
  std::vector<std::string> Cut(const RecordRows& records) const {
    std::string bytes;
    for (const RecordRows::Row& row : records.rows()) bytes += row.bytes;
    return CutBytes(bytes);
  }
  std::vector<std::string> CutBytes(absl::string_view records) const {
    v1::RecordBatch batch;
    batch.set_boot_id(options_.clock.boot_id);
    batch.set_unix_us_at_zero(options_.clock.unix_us_at_zero);
    std::string bytes = batch.SerializeAsString();
    absl::StrAppend(&bytes, records);
    std::vector<std::string> pieces;
    for (size_t begin = 0; begin < bytes.size(); begin += options_.piece_bytes_max) {
      v1::EtcdLogPiece piece;
      piece.set_bytes(bytes.substr(begin, options_.piece_bytes_max));
      piece.set_last(begin + options_.piece_bytes_max >= bytes.size());
      pieces.push_back(piece.SerializeAsString());
    }
    return pieces;
  }

  // Makes a transaction that sets the head and succeeds only for the leader, and only if no other
  // write came between.
  etcdserverpb::TxnRequest Guarded(const v1::EtcdLogHead& head) const {
    etcdserverpb::TxnRequest request;
    CreatedAt(options_.leader_key, options_.leader_revision, request.add_compare());
    ChangedAt(head_key_, head_revision_, request.add_compare());
    PutKey(head_key_, head.SerializeAsString(), 0, request.add_success());
    GetKey(options_.leader_key, request.add_failure());
    return request;
  }

  // Erases all pieces in [first, end).
  void Erase(uint64_t first, uint64_t end, etcdserverpb::TxnRequest* request) const {
    auto* erase = request->add_success()->mutable_request_delete_range();
    erase->set_key(PieceKey(first));
    erase->set_range_end(PieceKey(end));
  }

  absl::Status WritePieces(const std::vector<std::string>& pieces, const v1::EtcdLogHead& next) {
    uint64_t number = head_.next();
    for (size_t i = 0; i < pieces.size(); ++i, ++number) {
      const bool last = i + 1 == pieces.size();
      etcdserverpb::TxnRequest request = Guarded(last ? next : head_);
      PutKey(PieceKey(number), pieces[i], 0, request.add_success());
      RETURN_IF_ERROR(Write(request));
    }
    head_ = next;
    return absl::OkStatus();
  }

  absl::Status Write(const etcdserverpb::TxnRequest& request) {
    const absl::StatusOr<etcdserverpb::TxnResponse> response = options_.client->Txn(request);
    if (!response.ok()) {
      head_is_certain_ = false;
      return CannotSave(response.status());
    }
    if (response->succeeded()) {
      head_revision_ = response->header().revision();
      return absl::OkStatus();
    }
    head_is_certain_ = false;
    RETURN_IF_ERROR(CheckLeader(response->responses(0)));
    return CannotSave(absl::UnavailableError("an earlier write took effect only now"));
  }

  // After a write with an unknown outcome: reads what etcd holds now. A batch that was written is
  // written again, because the caller was told that it failed.
  absl::Status ResolveUncertainWrite() {
    RETURN_IF_ERROR(deposed_);
    if (head_is_certain_) return absl::OkStatus();
    ASSIGN_OR_RETURN(const v1::EtcdLogHead found, ReadHead());
    if (found.server_id() != head_.server_id())
      return Damaged("it was removed while the server ran");
    // A compaction took effect, however late. What it replaced is gone, and nothing of ours can
    // have been written after it, because a write needs the head's revision, which is known only
    // from here on.
    if (found.first() != head_.first()) head_ = found;
    head_is_certain_ = true;
    return absl::OkStatus();
  }

  // The result has no server_id if there is no log yet.
  absl::StatusOr<v1::EtcdLogHead> ReadHead() {
    etcdserverpb::TxnRequest request;
    GetKey(options_.leader_key, request.add_success());
    GetKey(head_key_, request.add_success());
    const absl::StatusOr<etcdserverpb::TxnResponse> response = options_.client->Txn(request);
    if (!response.ok()) return CannotSave(response.status());
    RETURN_IF_ERROR(CheckLeader(response->responses(0)));
    const auto& kvs = response->responses(1).response_range().kvs();
    head_revision_ = kvs.empty() ? 0 : kvs[0].mod_revision();
    v1::EtcdLogHead head;
    if (!kvs.empty() && (!head.ParseFromString(kvs[0].value()) || head.server_id() == 0)) {
      return Damaged("its head cannot be read");
    }
    return head;
  }

  absl::Status CheckLeader(const etcdserverpb::ResponseOp& response) {
    const auto& kvs = response.response_range().kvs();
    if (!kvs.empty() && kvs[0].create_revision() == options_.leader_revision) {
      return absl::OkStatus();
    }
    const std::string why = kvs.empty() ? "its lease in etcd has expired"
                                        : absl::StrCat("the server at ", kvs[0].value(), " does");
    deposed_ = absl::AbortedError(absl::StrCat("this server no longer leads: ", why));
    if (options_.on_deposed) options_.on_deposed(absl::AbortedError(why));
    return deposed_;
  }

  absl::Status ReadRecords(std::vector<v1::Record>* records) {
    std::string bytes;
    std::vector<WrittenOn> written_on;
    for (uint64_t number = head_.first(); number < head_.next();) {
      etcdserverpb::RangeRequest request;
      request.set_key(PieceKey(number));
      request.set_range_end(PieceKey(head_.next()));
      request.set_limit(kPiecesPerPage);
      const absl::StatusOr<etcdserverpb::RangeResponse> page = options_.client->Range(request);
      if (!page.ok()) return page.status();
      for (const etcdserverpb::KeyValue& kv : page->kvs()) {
        v1::EtcdLogPiece piece;
        if (kv.key() != PieceKey(number) || !piece.ParseFromString(kv.value())) break;
        ++number;
        bytes += piece.bytes();
        if (piece.last() && !TakeBatch(std::exchange(bytes, ""), &written_on, records)) {
          return Damaged(absl::StrCat("the batch that ends with ", kv.key(), " cannot be read"));
        }
      }
      if (page->kvs().empty() || PieceKey(number - 1) != page->kvs().rbegin()->key()) {
        return Damaged(absl::StrCat(PieceKey(number), " cannot be read"));
      }
    }
    if (!bytes.empty()) return Damaged("its last batch has no end");
    const std::vector<int64_t> shifts = MoveToClock(written_on, options_.clock, records);
    for (size_t i = 0; i < shifts.size(); ++i) clocks_.emplace_back(written_on[i].clock, shifts[i]);
    return absl::OkStatus();
  }

  // Runs one piece of a compaction. Threads that wait to append go first.
  absl::Status Step(const std::atomic<bool>& stop, const std::function<absl::Status()>& body) {
    if (stop) return absl::CancelledError("the server is shutting down");
    const absl::MutexLock lock(&mutex_,
                               absl::Condition(
                                   +[](EtcdLog* log) { return log->appends_ == 0; }, this));
    RETURN_IF_ERROR(ResolveUncertainWrite());
    return body();
  }

  // Reads pieces from `first` on; empty: there are no more.
  absl::StatusOr<std::vector<std::string>> ReadPieces(uint64_t first, int64_t most) const {
    std::vector<std::string> pieces;
    if (first >= head_.next()) return pieces;
    etcdserverpb::RangeRequest request;
    request.set_key(PieceKey(first));
    request.set_range_end(PieceKey(head_.next()));
    request.set_limit(most);
    const absl::StatusOr<etcdserverpb::RangeResponse> page = options_.client->Range(request);
    if (!page.ok()) return CannotSave(page.status());
    for (const etcdserverpb::KeyValue& kv : page->kvs()) pieces.push_back(kv.value());
    if (pieces.empty()) return Damaged(absl::StrCat(PieceKey(first), " is missing"));
    return pieces;
  }

  // Gives the compactor the records of the pieces in [first, end).
  absl::Status FeedAll(uint64_t first, uint64_t end, Compactor& compactor,
                       const std::atomic<bool>& stop) {
    std::string bytes;
    while (first < end) {
      std::vector<std::string> pieces;
      RETURN_IF_ERROR(Step(stop, [&]() -> absl::Status {
        const auto most = std::min<int64_t>(kPiecesPerPage, static_cast<int64_t>(end - first));
        ASSIGN_OR_RETURN(pieces, ReadPieces(first, most));
        return absl::OkStatus();
      }));
      for (const std::string& value : pieces) {
        v1::EtcdLogPiece piece;
        v1::RecordBatch batch;
        const bool good = piece.ParseFromString(value);
        bytes += piece.bytes();
        if (good && !piece.last()) continue;
        if (!good || !batch.ParseFromString(std::exchange(bytes, ""))) {
          return Damaged("a batch cannot be read");
        }
        const int64_t shift_us = ShiftOf(batch);
        for (v1::Record& record : *batch.mutable_records()) {
          ShiftTimes(shift_us, &record);
          compactor.Add(record);
        }
      }
      first += pieces.size();
    }
    return absl::OkStatus();
  }

  // The shift of the batch's times when the log was opened.
  int64_t ShiftOf(const v1::RecordBatch& batch) const {
    for (const auto& [clock, shift_us] : clocks_) {
      if (clock.boot_id == batch.boot_id() && clock.unix_us_at_zero == batch.unix_us_at_zero()) {
        return shift_us;
      }
    }
    return 0;
  }

  static bool TakeBatch(const std::string& bytes, std::vector<WrittenOn>* written_on,
                        std::vector<v1::Record>* records) {
    v1::RecordBatch batch;
    if (!batch.ParseFromString(bytes)) return false;
    const ClockBase clock = {batch.boot_id(), batch.unix_us_at_zero()};
    // Times of one leader are shifted together.
    if (written_on->empty() || written_on->back().clock.boot_id != clock.boot_id ||
        written_on->back().clock.unix_us_at_zero != clock.unix_us_at_zero) {
      written_on->push_back({records->size(), clock});
    }
    for (v1::Record& record : *batch.mutable_records()) records->push_back(std::move(record));
    return true;
  }

  absl::Status Damaged(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat(
        "the state in etcd under ", options_.prefix, " is damaged: ", what,
        "; restore etcd from a copy, or give another --etcd-prefix to begin with an empty state, "
        "in which running jobs start anew"));
  }

  static absl::Status CannotSave(const absl::Status& status) {
    return absl::Status(
        absl::IsResourceExhausted(status) ? status.code() : absl::StatusCode::kUnavailable,
        absl::StrCat("cannot save state: ", status.message()));
  }

  const EtcdLogOptions options_;
  const std::string head_key_;
  // The acknowledged head; etcd may hold more after a write whose answer was lost.
  v1::EtcdLogHead head_;
  int64_t head_revision_ = 0;
  // Whether head_revision_ is that of the head in etcd.
  bool head_is_certain_ = true;
  absl::Status deposed_;
  // The clocks of the records that existed at the start, and the shifts of their times.
  std::vector<std::pair<ClockBase, int64_t>> clocks_;

  // Held for one Append, or one piece of a compaction.
  mutable absl::Mutex mutex_;
  // The number of appends that wait for the mutex.
  std::atomic<int> appends_{0};
};

}  // namespace

absl::StatusOr<OpenedLog> OpenEtcdLog(const EtcdLogOptions& options) {
  auto log = std::make_unique<EtcdLog>(options);
  OpenedLog opened;
  RETURN_IF_ERROR(log->Open(&opened.records));
  opened.log = std::move(log);
  return opened;
}

}  // namespace cadre::log
