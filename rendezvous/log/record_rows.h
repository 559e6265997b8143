// Records as they are saved: encoded, which takes a tenth of the memory of the messages, and in
// rows of bounded size. One thread.
#ifndef CADRE_RENDEZVOUS_LOG_RECORD_ROWS_H_
#define CADRE_RENDEZVOUS_LOG_RECORD_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "proto/record.pb.h"

namespace cadre::log {

// A row is full from this size on.
inline constexpr size_t kRowBytes = 1 << 20;

class RecordRows {
 public:
  struct Row {
    // A v1::RecordBatch with nothing else in it.
    std::string bytes;
    int64_t records = 0;
  };

  RecordRows() = default;
  // Not explicit: these are records, too.
  RecordRows(const std::vector<v1::Record>& records);
  RecordRows(std::initializer_list<v1::Record> records);

  void Add(const v1::Record& record);
  // Behind these.
  void AddAll(RecordRows later);

  bool empty() const { return rows_.empty(); }
  // Records, not rows.
  size_t size() const;
  const std::vector<Row>& rows() const { return rows_; }
  std::vector<v1::Record> Decoded() const;

 private:
  std::vector<Row> rows_;
};

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_RECORD_ROWS_H_
