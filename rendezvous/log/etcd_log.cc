#include "rendezvous/log/etcd_log.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "rendezvous/log/state_format.h"

namespace cadre::log {
namespace {

// A snapshot and twice as much again.
constexpr uint64_t kCompactionFactor = 3;
// With pieces of their largest size a page is 16 MiB.
constexpr int64_t kPiecesPerPage = 16;

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
    // Removes what a leader before this one left unfinished.
    etcdserverpb::TxnRequest request = Guarded(head_);
    Erase(head_.next(), UINT64_MAX, &request);
    RETURN_IF_ERROR(Write(request));
    return ReadRecords(records);
  }

  uint64_t server_id() const override { return head_.server_id(); }

  absl::Status Append(const RecordRows& records) override {
    const std::vector<std::string> pieces = Cut(records);
    RETURN_IF_ERROR(Settle());
    v1::EtcdLogHead next = head_;
    next.set_next(head_.next() + pieces.size());
    next.set_log_bytes(head_.log_bytes() + BytesOf(pieces));
    return WritePieces(pieces, next);
  }

  bool WantsCompaction() const override {
    return head_.log_bytes() >
           std::max(kEtcdCompactionBytesMin, kCompactionFactor * head_.snapshot_bytes());
  }

  absl::Status Compact(const RecordRows& snapshot) override {
    const std::vector<std::string> pieces = Cut(snapshot);
    RETURN_IF_ERROR(Settle());
    v1::EtcdLogHead next = head_;
    next.set_first(head_.next());
    next.set_next(head_.next() + pieces.size());
    next.set_log_bytes(BytesOf(pieces));
    next.set_snapshot_bytes(next.log_bytes());
    return WritePieces(pieces, next);
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

  // The batch, as values of keys.
  std::vector<std::string> Cut(const RecordRows& records) const {
    v1::RecordBatch batch;
    batch.set_boot_id(options_.clock.boot_id);
    batch.set_unix_us_at_zero(options_.clock.unix_us_at_zero);
    std::string bytes = batch.SerializeAsString();
    for (const RecordRows::Row& row : records.rows()) bytes += row.bytes;
    std::vector<std::string> pieces;
    for (size_t begin = 0; begin < bytes.size(); begin += options_.piece_bytes_max) {
      v1::EtcdLogPiece piece;
      piece.set_bytes(bytes.substr(begin, options_.piece_bytes_max));
      piece.set_last(begin + options_.piece_bytes_max >= bytes.size());
      pieces.push_back(piece.SerializeAsString());
    }
    return pieces;
  }

  // A transaction that succeeds only for the leader and after nothing else; it sets the head.
  etcdserverpb::TxnRequest Guarded(const v1::EtcdLogHead& head) const {
    etcdserverpb::TxnRequest request;
    CreatedAt(options_.leader_key, options_.leader_revision, request.add_compare());
    ChangedAt(head_key_, head_revision_, request.add_compare());
    PutKey(head_key_, head.SerializeAsString(), 0, request.add_success());
    GetKey(options_.leader_key, request.add_failure());
    return request;
  }

  // All pieces from `first` up to, and without, `end`.
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
      if (last && next.first() != head_.first()) Erase(head_.first(), next.first(), &request);
      RETURN_IF_ERROR(Write(request));
    }
    head_ = next;
    return absl::OkStatus();
  }

  absl::Status Write(const etcdserverpb::TxnRequest& request) {
    const absl::StatusOr<etcdserverpb::TxnResponse> response = options_.client->Txn(request);
    if (!response.ok()) {
      certain_ = false;
      return Named(response.status());
    }
    if (response->succeeded()) {
      head_revision_ = response->header().revision();
      return absl::OkStatus();
    }
    certain_ = false;
    RETURN_IF_ERROR(CheckLeader(response->responses(0)));
    return Named(absl::UnavailableError("an earlier write came through late"));
  }

  // After a write whose outcome is not known: what etcd holds now. A batch that came through is
  // written again, as the caller was told that it failed.
  absl::Status Settle() {
    RETURN_IF_ERROR(deposed_);
    if (certain_) return absl::OkStatus();
    ASSIGN_OR_RETURN(const v1::EtcdLogHead found, ReadHead());
    if (found.server_id() != head_.server_id())
      return Damaged("it was removed while the server ran");
    // A compaction came through, however late. What it replaced is gone, and nothing of ours was
    // written after it: that takes the head's revision, which is known only from here on.
    if (found.first() != head_.first()) head_ = found;
    certain_ = true;
    return absl::OkStatus();
  }

  // Without a server_id where there is none yet.
  absl::StatusOr<v1::EtcdLogHead> ReadHead() {
    etcdserverpb::TxnRequest request;
    GetKey(options_.leader_key, request.add_success());
    GetKey(head_key_, request.add_success());
    const absl::StatusOr<etcdserverpb::TxnResponse> response = options_.client->Txn(request);
    if (!response.ok()) return Named(response.status());
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
    const std::string why = kvs.empty() ? "its lease in etcd has ended"
                                        : absl::StrCat("the one at ", kvs[0].value(), " does");
    deposed_ = absl::AbortedError(absl::StrCat("this server no longer leads: ", why));
    if (options_.on_deposed) options_.on_deposed(absl::AbortedError(why));
    return deposed_;
  }

  absl::Status ReadRecords(std::vector<v1::Record>* records) const {
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
    MoveToClock(written_on, options_.clock, records);
    return absl::OkStatus();
  }

  static bool TakeBatch(const std::string& bytes, std::vector<WrittenOn>* written_on,
                        std::vector<v1::Record>* records) {
    v1::RecordBatch batch;
    if (!batch.ParseFromString(bytes)) return false;
    const ClockBase clock = {batch.boot_id(), batch.unix_us_at_zero()};
    // Those of one leader are moved together.
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

  static absl::Status Named(const absl::Status& status) {
    return absl::Status(
        absl::IsResourceExhausted(status) ? status.code() : absl::StatusCode::kUnavailable,
        absl::StrCat("cannot save state: ", status.message()));
  }

  const EtcdLogOptions options_;
  const std::string head_key_;
  // As acknowledged; etcd may hold more after a write whose answer was lost.
  v1::EtcdLogHead head_;
  int64_t head_revision_ = 0;
  // Whether head_revision_ is that of the head in etcd.
  bool certain_ = true;
  absl::Status deposed_;
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
