#include "agent/status_view.h"

#include "agent/recording_display.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::SizeIs;

TEST(StatusViewTest, StatusIsShownAtOnce_ProgressNowAndThen) {
  RecordingDisplay display;
  std::vector<v1::Progress> progress;
  StatusView view(display, [&progress] { return progress; });
  const MonoTime start = MonoTime::FromMicros(1000000);
  v1::JobStatus status;
  status.set_name("j");
  view.Set(status, start);
  view.Set(status, start);
  EXPECT_EQ(display.drawn, 2);
  EXPECT_EQ(display.status.name(), "j");

  progress.emplace_back();
  view.RedrawIfDue(start + (kProgressRedraw - absl::Milliseconds(1)));
  EXPECT_EQ(display.drawn, 2);
  view.RedrawIfDue(start + kProgressRedraw);
  EXPECT_EQ(display.drawn, 3);
  EXPECT_THAT(display.progress, SizeIs(1));
  EXPECT_EQ(display.status.name(), "j");
  view.Redraw(start + kProgressRedraw);
  EXPECT_EQ(display.drawn, 4);
}

// The last state of a bar, after which nothing comes for long.
TEST(StatusViewTest, WhatCameTooSoonIsShownALittleLater) {
  RecordingDisplay display;
  StatusView view(display, [] { return std::vector<v1::Progress>(); });
  const MonoTime start = MonoTime::FromMicros(1000000);
  view.Age(start);
  EXPECT_EQ(display.drawn, 0);
  view.Set(v1::JobStatus(), start);
  view.RedrawIfDue(start + absl::Milliseconds(10));
  view.Age(start + absl::Milliseconds(20));
  EXPECT_EQ(display.drawn, 1);
  view.Age(start + kProgressRedraw);
  EXPECT_EQ(display.drawn, 2);
  view.Age(start + 2 * kProgressRedraw);
  EXPECT_EQ(display.drawn, 2);
}

TEST(StatusViewTest, WhatIsShownOfProgressAges) {
  RecordingDisplay display;
  StatusView view(display, [] { return std::vector<v1::Progress>(); });
  const MonoTime start = MonoTime::FromMicros(1000000);
  view.Set(v1::JobStatus(), start);
  view.Age(start + absl::Milliseconds(999));
  EXPECT_EQ(display.drawn, 1);
  v1::JobStatus status;
  status.mutable_progress()->set_quiet_us(500000);
  view.Set(status, start);
  view.Age(start + absl::Milliseconds(999));
  EXPECT_EQ(display.drawn, 2);
  view.Age(start + absl::Seconds(25));
  EXPECT_EQ(display.drawn, 3);
  EXPECT_EQ(display.status.progress().quiet_us(), 25500000);
}

}  // namespace
}  // namespace cadre::agent
