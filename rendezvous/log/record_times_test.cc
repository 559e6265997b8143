#include "rendezvous/log/record_times.h"

#include <vector>

#include "gtest/gtest.h"

namespace cadre::log {
namespace {

TEST(RecordTimesTest, WithinOneStartOfTheMachineTimesStayWhateverTheWallClockDoes) {
  EXPECT_EQ(ShiftBetween({"boot", 1000}, {"boot", 999999}), 0);
}

TEST(RecordTimesTest, AfterAStartOfTheMachineWallTimeStays) {
  // At monotonic 500 it was 10500 on the wall; the new monotonic clock began at 10400.
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

  v1::Record restored;
  v1::JobRestored* job = restored.mutable_job_restored();
  job->add_counted_restarts_us(10);
  job->set_created_us(20);
  job->mutable_generation()->set_formed_us(30);
  ShiftTimes(-5, &restored);
  EXPECT_EQ(job->counted_restarts_us(0), 5);
  EXPECT_EQ(job->created_us(), 15);
  EXPECT_EQ(job->generation().formed_us(), 25);
  EXPECT_EQ(job->generation().stopping_us(), 0) << "what has not been stays so";
}

TEST(RecordTimesTest, WhatIsOnRecordHasBeenWhateverTheWallClocksSay) {
  v1::Record created, began, other;
  created.mutable_job_created()->set_at_us(100);
  began.mutable_gathering_began()->set_at_us(160);
  began.mutable_gathering_began()->set_not_before_us(190);
  other.mutable_job_created()->set_at_us(30);
  std::vector<v1::Record> records = {created, began, other};
  // By the wall clock the first two were 5000 later than on the clock that shows 1000 now.
  const ClockBase now = {"new", 20000, 1000};
  MoveToClock({{0, {"old", 25000}}, {2, {"another", 19990}}}, now, &records);
  EXPECT_EQ(records[1].gathering_began().at_us(), 1000);
  EXPECT_EQ(records[0].job_created().at_us(), 940);
  EXPECT_EQ(records[1].gathering_began().not_before_us(), 1030) << "that may lie ahead";
  EXPECT_EQ(records[2].job_created().at_us(), 20);
}

// A kind of record that is added later and names a moment must be moved too.
TEST(RecordTimesTest, NoKindOfRecordIsForgotten) {
  const auto* body = v1::Record::descriptor()->FindOneofByName("body");
  for (int i = 0; i < body->field_count(); ++i) {
    const auto* at = body->field(i)->message_type()->FindFieldByName("at_us");
    if (at == nullptr) continue;
    v1::Record record;
    google::protobuf::Message* message =
        record.GetReflection()->MutableMessage(&record, body->field(i));
    message->GetReflection()->SetInt64(message, at, 40);
    ShiftTimes(2, &record);
    EXPECT_EQ(message->GetReflection()->GetInt64(*message, at), 42) << body->field(i)->name();
  }
}

}  // namespace
}  // namespace cadre::log
