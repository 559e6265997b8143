#include "agent/workers/python/warm_notes.h"

#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

supervisor::StartedFrame Cold(const std::string& why) {
  supervisor::StartedFrame started;
  started.why_cold = why;
  return started;
}

TEST(WarmNotes, WhyAWorkerIsNotWarmIsSaidOnceAGenerationAndNotOfTheFirst) {
  WarmNotes notes;
  EXPECT_EQ(notes.OnStarted(Cold("its first start"), 1, false), "");
  EXPECT_EQ(notes.OnStarted(Cold(""), 2, true), "");
  EXPECT_EQ(notes.OnStarted(Cold("no room"), 2, true), "started plainly, not warm: no room");
  EXPECT_EQ(notes.OnStarted(Cold("no room"), 2, true), "");
  EXPECT_EQ(notes.OnStarted(Cold("no room"), 3, true), "started plainly, not warm: no room");
}

}  // namespace
}  // namespace cadre::agent
