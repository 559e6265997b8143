#include "rendezvous/log/record_log.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/state.pb.h"

namespace cadre::log {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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

int64_t CreatedUs(const v1::Record& record) {
  return record.job_created().job().times().created_us();
}

TEST(RecordTimesTest, WithinOneStartOfTheMachineTimesStayWhateverTheWallClockDoes) {
  EXPECT_EQ(ShiftBetween({"boot", 1000}, {"boot", 999999}), 0);
}

TEST(RecordTimesTest, AfterAStartOfTheMachineWallTimeStays) {
  // At monotonic 500 the wall clock showed 10500; the new monotonic clock began at 10400.
  EXPECT_EQ(ShiftBetween({"old", 10000}, {"new", 10400}), -400);
  EXPECT_EQ(ShiftBetween({"", 10000}, {"", 10400}), -400) << "nobody knows whether it is the same";
}

TEST(RecordTimesTest, EveryMomentOfARecordMoves) {
  v1::Record began;
  began.mutable_gathering_began()->set_at_us(100);
  began.mutable_gathering_began()->set_not_before_us(150);
  ShiftTimes(7, &began);
  EXPECT_EQ(began.gathering_began().at_us(), 107);
  EXPECT_EQ(began.gathering_began().not_before_us(), 157);

  v1::Record snapshot;
  saved::WholeJob* whole = snapshot.mutable_snapshot()->add_jobs();
  whole->mutable_job()->mutable_restarts()->add_counted_us(10);
  whole->mutable_job()->mutable_times()->set_created_us(20);
  whole->mutable_generation()->set_formed_us(30);
  ShiftTimes(-5, &snapshot);
  EXPECT_EQ(whole->job().restarts().counted_us(0), 5);
  EXPECT_EQ(whole->job().times().created_us(), 15);
  EXPECT_EQ(whole->job().times().gathering_us(), 0) << "what has not been stays so";
  EXPECT_EQ(whole->generation().formed_us(), 25);
}

TEST(RecordTimesTest, WhatIsOnRecordHasBeenWhateverTheWallClocksSay) {
  v1::Record created, began, other;
  created.mutable_job_created()->mutable_job()->mutable_times()->set_created_us(100);
  began.mutable_gathering_began()->set_at_us(160);
  began.mutable_gathering_began()->set_not_before_us(190);
  other.mutable_job_created()->mutable_job()->mutable_times()->set_created_us(30);
  std::vector<v1::Record> records = {created, began, other};
  // By the wall clock the first two were 5000 later than the clock that shows 1000 now.
  const ClockBase now = {"new", 20000, 1000};
  MoveToClock({{0, {"old", 25000}}, {2, {"another", 19990}}}, now, &records);
  EXPECT_EQ(records[1].gathering_began().at_us(), 1000);
  EXPECT_EQ(CreatedUs(records[0]), 940);
  EXPECT_EQ(records[1].gathering_began().not_before_us(), 1030) << "that may lie ahead";
  EXPECT_EQ(CreatedUs(records[2]), 20);
}

// Times are in records, and in the state's messages inside them; those of a timeline are relative
// to the job's creation, and those of NodeTime are durations.
bool HasMoments(const google::protobuf::Descriptor* type) {
  return type->file() == v1::Record::descriptor()->file() ||
         (type->file() == saved::State::descriptor()->file() &&
          type != saved::NodeTime::descriptor());
}

// Sets every time in the message, one for each list.
void SetMoments(int64_t at_us, google::protobuf::Message* message) {
  const google::protobuf::Descriptor* type = message->GetDescriptor();
  const google::protobuf::Reflection* reflection = message->GetReflection();
  for (int i = 0; i < type->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = type->field(i);
    const bool is_moment = absl::EndsWith(field->name(), "_us");
    if (is_moment && field->is_repeated()) {
      reflection->AddInt64(message, field, at_us);
    } else if (is_moment) {
      reflection->SetInt64(message, field, at_us);
    } else if (field->message_type() == nullptr || !HasMoments(field->message_type())) {
      continue;
    } else if (field->is_map()) {
      continue;
    } else if (field->is_repeated()) {
      SetMoments(at_us, reflection->AddMessage(message, field));
    } else {
      SetMoments(at_us, reflection->MutableMessage(message, field));
    }
  }
}

// Times of record types that are added later must be shifted too.
TEST(RecordTimesTest, NoMomentIsForgotten) {
  const auto* body = v1::Record::descriptor()->FindOneofByName("body");
  for (int i = 0; i < body->field_count(); ++i) {
    v1::Record record, moved;
    for (auto [one, at_us] : {std::make_pair(&record, 40), std::make_pair(&moved, 42)}) {
      SetMoments(at_us, one->GetReflection()->MutableMessage(one, body->field(i)));
    }
    ShiftTimes(2, &record);
    EXPECT_EQ(record.ShortDebugString(), moved.ShortDebugString()) << body->field(i)->name();
  }
}

absl::Status Check(int64_t format) {
  return CheckStateFormat("/state/state.db", format, "move the directory away", {2, 3});
}

TEST(StateFormat, FromTheOldestToTheNewestIsRead) {
  EXPECT_OK(Check(2));
  EXPECT_OK(Check(3));
}

TEST(StateFormat, ANewerOneIsRefusedInOneLine) {
  EXPECT_THAT(Check(4),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("/state/state.db has format 4, of a newer"),
                             HasSubstr("or move the directory away"), Not(HasSubstr("\n")))));
}

TEST(StateFormat, AnOlderOneNeedsTheVersionThatWroteIt) {
  EXPECT_THAT(Check(1), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("has format 1"), HasSubstr("that wrote it"))));
}

}  // namespace

}  // namespace cadre::log
