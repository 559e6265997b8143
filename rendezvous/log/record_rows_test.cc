#include "rendezvous/log/record_rows.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::log {
namespace {

using ::testing::ElementsAre;

v1::Record OfJob(const std::string& job) {
  v1::Record record;
  record.set_job(job);
  return record;
}

std::vector<std::string> Jobs(const RecordRows& rows) {
  std::vector<std::string> jobs;
  for (const v1::Record& record : rows.Decoded()) jobs.push_back(record.job());
  return jobs;
}

TEST(RecordRowsTest, RecordsComeBackInTheirOrder) {
  RecordRows rows;
  EXPECT_TRUE(rows.empty());
  rows.Add(OfJob("a"));
  rows.Add(OfJob(""));
  rows.AddAll({OfJob("b"), OfJob("c")});
  EXPECT_FALSE(rows.empty());
  EXPECT_EQ(rows.size(), 4u);
  EXPECT_THAT(Jobs(rows), ElementsAre("a", "", "b", "c"));
}

TEST(RecordRowsTest, ARowIsABatchOfRecords) {
  const RecordRows rows({OfJob("a"), OfJob("b")});
  ASSERT_EQ(rows.rows().size(), 1u);
  EXPECT_EQ(rows.rows()[0].records, 2);
  v1::RecordBatch batch;
  *batch.add_records() = OfJob("a");
  *batch.add_records() = OfJob("b");
  EXPECT_EQ(rows.rows()[0].bytes, batch.SerializeAsString());
}

TEST(RecordRowsTest, AFullRowIsFollowedByAnother) {
  RecordRows rows;
  const std::string half(kRowBytes / 2, 'x');
  for (int i = 0; i < 3; ++i) rows.Add(OfJob(half));
  ASSERT_EQ(rows.rows().size(), 2u);
  EXPECT_EQ(rows.rows()[0].records, 2);
  EXPECT_EQ(rows.rows()[1].records, 1);
  EXPECT_THAT(Jobs(rows), ElementsAre(half, half, half));
}

}  // namespace
}  // namespace cadre::log
