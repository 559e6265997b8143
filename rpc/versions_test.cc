#include "rpc/versions.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rendezvous.pb.h"

namespace cadre::rpc {
namespace {

using testing::StartsWith;

v1::Version Of(uint32_t major, uint32_t minor, const std::string& program = "") {
  v1::Version version;
  version.set_major(major);
  version.set_minor(minor);
  version.set_program(program);
  return version;
}

std::string Refusal(const v1::Version& own, const v1::Version& other) {
  const absl::Status status = CheckVersions("the server", own, "this node", other);
  EXPECT_TRUE(status.ok() || absl::IsUnavailable(status));
  return std::string(status.message());
}

TEST(VersionsTest, TheProtocolsIsTheProgramsVersion) {
  EXPECT_THAT(kVersion, StartsWith(absl::StrCat(kMajorVersion, ".", kMinorVersion, ".")));
  EXPECT_EQ(VersionText(ThisVersion()), kVersion);
  EXPECT_EQ(OtherVersionText(ThisVersion()), "");
}

TEST(VersionsTest, WhoSaysNothingIsOfTheVersionBeforeThereWasAny) {
  const v1::Version before = VersionIn(v1::Welcome());
  EXPECT_EQ(VersionText(before), "0.2");
  EXPECT_EQ(OtherVersionText(before), "0.2");
  v1::Join join;
  *join.mutable_version() = ThisVersion();
  EXPECT_EQ(VersionIn(join).minor(), kMinorVersion);
}

TEST(VersionsTest, NeighboursWorkTogether) {
  EXPECT_EQ(Refusal(Of(0, 3), Of(0, 2)), "");
  EXPECT_EQ(Refusal(Of(0, 3), Of(0, 3)), "");
  EXPECT_EQ(Refusal(Of(0, 3), Of(0, 4)), "");
}

TEST(VersionsTest, WhatIsFurtherApartIsRefusedWithBothVersionsAndTheOlderOneToUpgrade) {
  EXPECT_EQ(Refusal(Of(0, 5, "0.5.1"), Of(0, 2)),
            "the server is of Cadre 0.5.1, this node of 0.2, and only minor versions next to each "
            "other work together: upgrade this node to 0.4 or later");
  EXPECT_EQ(Refusal(Of(0, 3, "0.3.0"), Of(0, 5, "0.5.0")),
            "the server is of Cadre 0.3.0, this node of 0.5.0, and only minor versions next to "
            "each other work together: upgrade the server to 0.4 or later");
  EXPECT_EQ(Refusal(Of(1, 0), Of(0, 9)),
            "the server is of Cadre 1.0, this node of 0.9, and only minor versions next to each "
            "other work together: upgrade this node to 1.0 or later");
}

TEST(VersionsTest, WhatAPeerWritesStaysOneShortLine) {
  EXPECT_EQ(VersionText(Of(0, 4, "a\nb")), "a\\nb");
  EXPECT_LE(VersionText(Of(0, 4, std::string(5000, 'x'))).size(), 40u);
}

}  // namespace
}  // namespace cadre::rpc
