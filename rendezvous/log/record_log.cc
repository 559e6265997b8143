#include "rendezvous/log/record_log.h"

#include <time.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "google/protobuf/io/coded_stream.h"
#include "proto/state.pb.h"
#include "rendezvous/log/record_log.h"

namespace cadre::log {
namespace {

// The encoding of RecordBatch.records.
void AppendTo(std::string* row, const v1::Record& record) {
  using google::protobuf::io::CodedOutputStream;
  constexpr uint32_t kTag = v1::RecordBatch::kRecordsFieldNumber << 3 | 2;  // length-delimited
  const size_t size = record.ByteSizeLong();
  const size_t before = row->size();
  const size_t head = CodedOutputStream::VarintSize32(kTag) +
                      CodedOutputStream::VarintSize32(static_cast<uint32_t>(size));
  row->resize(before + head + size);
  auto* to = reinterpret_cast<uint8_t*>(row->data() + before);
  to = CodedOutputStream::WriteTagToArray(kTag, to);
  to = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(size), to);
  record.SerializeWithCachedSizesToArray(to);
}

}  // namespace

RecordRows::RecordRows(const std::vector<v1::Record>& records) {
  for (const v1::Record& record : records) Add(record);
}

RecordRows::RecordRows(std::initializer_list<v1::Record> records) {
  for (const v1::Record& record : records) Add(record);
}

void RecordRows::Add(const v1::Record& record) {
  if (rows_.empty() || rows_.back().bytes.size() >= kRowBytes) rows_.emplace_back();
  AppendTo(&rows_.back().bytes, record);
  ++rows_.back().records;
}

void RecordRows::AddAll(RecordRows later) {
  rows_.insert(rows_.end(), std::make_move_iterator(later.rows_.begin()),
               std::make_move_iterator(later.rows_.end()));
}

size_t RecordRows::size() const {
  size_t records = 0;
  for (const Row& row : rows_) records += static_cast<size_t>(row.records);
  return records;
}

std::vector<v1::Record> RecordRows::Decoded() const {
  std::vector<v1::Record> records;
  for (const Row& row : rows_) {
    v1::RecordBatch batch;
    batch.ParseFromString(row.bytes);
    records.insert(records.end(), std::make_move_iterator(batch.mutable_records()->begin()),
                   std::make_move_iterator(batch.mutable_records()->end()));
  }
  return records;
}

namespace {

// The time at which a job may restart may be in the future; all other times are in the past.
enum class Moment { kPast, kFuture };

template <typename Visit>
void VisitJob(saved::Job* job, const Visit& visit) {
  saved::JobTimes* times = job->mutable_times();
  times->set_created_us(visit(times->created_us(), Moment::kPast));
  times->set_gathering_us(visit(times->gathering_us(), Moment::kPast));
  times->set_not_before_us(visit(times->not_before_us(), Moment::kFuture));
  times->set_last_join_us(visit(times->last_join_us(), Moment::kPast));
  times->set_submitted_us(visit(times->submitted_us(), Moment::kPast));
  times->set_ended_us(visit(times->ended_us(), Moment::kPast));
  times->set_began_us(visit(times->began_us(), Moment::kPast));
  times->set_limit_from_us(visit(times->limit_from_us(), Moment::kPast));
  if (!job->has_restarts()) return;
  for (int64_t& at_us : *job->mutable_restarts()->mutable_counted_us()) {
    at_us = visit(at_us, Moment::kPast);
  }
}

template <typename Visit>
void VisitGeneration(saved::Generation* generation, const Visit& visit) {
  generation->set_formed_us(visit(generation->formed_us(), Moment::kPast));
  if (!generation->has_stop()) return;
  saved::GenerationStop* stop = generation->mutable_stop();
  stop->set_ordered_us(visit(stop->ordered_us(), Moment::kPast));
  stop->set_failed_us(visit(stop->failed_us(), Moment::kPast));
}

template <typename Visit>
void VisitState(saved::State* piece, const Visit& visit) {
  for (saved::WholeJob& whole : *piece->mutable_jobs()) {
    VisitJob(whole.mutable_job(), visit);
    VisitGeneration(whole.mutable_generation(), visit);
  }
  for (saved::PlacedPart& part : *piece->mutable_parts()) {
    part.set_placed_us(visit(part.placed_us(), Moment::kPast));
  }
}

template <typename Body, typename Visit>
void VisitAt(Body* body, const Visit& visit) {
  body->set_at_us(visit(body->at_us(), Moment::kPast));
}

// Replaces every time in the record by the result of `visit`.
template <typename Visit>
void VisitMoments(v1::Record* record, const Visit& visit) {
  switch (record->body_case()) {
    case v1::Record::kJobCreated:
      return VisitJob(record->mutable_job_created()->mutable_job(), visit);
    case v1::Record::kNodeAdmitted:
      return VisitAt(record->mutable_node_admitted(), visit);
    case v1::Record::kGenerationFormed:
      return VisitGeneration(record->mutable_generation_formed()->mutable_generation(), visit);
    case v1::Record::kWorkerRan:
      return VisitAt(record->mutable_worker_ran(), visit);
    case v1::Record::kWorkerEnded:
      return VisitAt(record->mutable_worker_ended(), visit);
    case v1::Record::kStopOrdered:
      return VisitAt(record->mutable_stop_ordered(), visit);
    case v1::Record::kNodeCleared:
      return VisitAt(record->mutable_node_cleared(), visit);
    case v1::Record::kGatheringBegan: {
      v1::GatheringBegan* began = record->mutable_gathering_began();
      began->set_not_before_us(visit(began->not_before_us(), Moment::kFuture));
      return VisitAt(began, visit);
    }
    case v1::Record::kJobEnded:
      return VisitAt(record->mutable_job_ended(), visit);
    case v1::Record::kSnapshot:
      return VisitState(record->mutable_snapshot(), visit);
    case v1::Record::kPartPlaced:
      return VisitAt(record->mutable_part_placed(), visit);
    case v1::Record::kPartEnded:
      return VisitAt(record->mutable_part_ended(), visit);
    case v1::Record::kNodeRemoved:
    case v1::Record::kNodeImported:
    case v1::Record::kKeyWritten:
    case v1::Record::kKeyErased:
    case v1::Record::kCommunicatorIdPublished:
    case v1::Record::kStoreAnswered:
    case v1::Record::kClusterNodeSet:
    case v1::Record::kClusterNodeGone:
    case v1::Record::kPartTakenBack:
    case v1::Record::kJobUpdated:
    case v1::Record::BODY_NOT_SET:
      return;
  }
}

}  // namespace

ClockBase ThisClockBase() {
  ClockBase base;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> base.boot_id;
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  base.now_us = MonoNow().micros();
  base.unix_us_at_zero = int64_t{wall.tv_sec} * 1000000 + wall.tv_nsec / 1000 - base.now_us;
  return base;
}

int64_t ShiftBetween(const ClockBase& from, const ClockBase& to) {
  if (!from.boot_id.empty() && from.boot_id == to.boot_id) return 0;
  return from.unix_us_at_zero - to.unix_us_at_zero;
}

void ShiftTimes(int64_t shift_us, v1::Record* record) {
  if (shift_us == 0) return;
  VisitMoments(record, [&](int64_t at_us, Moment) { return at_us == 0 ? 0 : at_us + shift_us; });
}

std::vector<int64_t> MoveToClock(const std::vector<WrittenOn>& written_on, const ClockBase& to,
                                 std::vector<v1::Record>* records) {
  std::vector<int64_t> shifts(written_on.size());
  for (size_t i = 0; i < written_on.size(); ++i) {
    int64_t shift_us = ShiftBetween(written_on[i].clock, to);
    if (shift_us == 0) continue;
    const auto begin = records->begin() + static_cast<ptrdiff_t>(written_on[i].begin);
    const auto end = i + 1 == written_on.size()
                         ? records->end()
                         : records->begin() + static_cast<ptrdiff_t>(written_on[i + 1].begin);
    int64_t newest_us = 0;
    for (auto record = begin; record != end; ++record) {
      VisitMoments(&*record, [&](int64_t at_us, Moment moment) {
        if (moment == Moment::kPast) newest_us = std::max(newest_us, at_us);
        return at_us;
      });
    }
    shift_us = std::min(shift_us, to.now_us - newest_us);
    for (auto record = begin; record != end; ++record) ShiftTimes(shift_us, &*record);
    shifts[i] = shift_us;
  }
  return shifts;
}

absl::Status CheckStateFormat(absl::string_view what, int64_t format, absl::string_view otherwise,
                              const ReadableFormats& reads) {
  if (format >= reads.oldest && format <= reads.newest) return absl::OkStatus();
  if (format > reads.newest) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " has format ", format, ", of a newer version of cadre; this one reads ",
                     "up to format ", reads.newest, ": run the newer one, or ", otherwise));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(what, " has format ", format, ", of an older version of cadre; this one reads ",
                   "format ", reads.oldest, reads.newest > reads.oldest ? " and later" : "",
                   ": run the version that wrote it, or ", otherwise));
}

}  // namespace cadre::log
