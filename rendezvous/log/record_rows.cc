#include "rendezvous/log/record_rows.h"

#include <iterator>

#include "google/protobuf/io/coded_stream.h"

namespace cadre::log {
namespace {

// As RecordBatch.records has it.
void AppendTo(std::string* row, const v1::Record& record) {
  using google::protobuf::io::CodedOutputStream;
  constexpr uint32_t kTag = v1::RecordBatch::kRecordsFieldNumber << 3 | 2;  // of bytes that follow
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

}  // namespace cadre::log
