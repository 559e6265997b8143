#include "worker_runtime/launched/address_meeting.h"

#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/sockets/endpoint.h"

namespace cadre::launched {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const environment::Secret kOwn = {"0123456789abcdef", false};
const environment::Secret kShared = {"0123456789abcdef", true};
// For documentation: nobody has it.
constexpr char kElsewhere[] = "192.0.2.1";

TEST(AddressMeetingTest, WithoutASharedSecretEverythingStaysOnLoopback) {
  for (const char* host : {"127.0.0.1", "localhost", "::1", "127.0.1.1"}) {
    const auto meeting = MeetAtAddress({host, 0}, kOwn, std::nullopt);
    ASSERT_OK(meeting);
    const auto door = (*meeting)->Open();
    ASSERT_OK(door);
    EXPECT_THAT(sockets::EndpointOf(door->listener), StartsWith("127.0.0.1:")) << host;
    const auto at = (*meeting)->Find();
    ASSERT_OK(at);
    EXPECT_EQ(at->endpoint, "127.0.0.1:0");
    EXPECT_EQ(at->key, door->key);
    EXPECT_THAT((*meeting)->Advice(), HasSubstr("CADRE_SECRET_FILE"));
  }
}

TEST(AddressMeetingTest, RanksOfSeveralMachinesNeedASharedSecret) {
  EXPECT_THAT(MeetAtAddress({kElsewhere, 29500}, kOwn, std::nullopt),
              StatusIs(StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("CADRE_SECRET_FILE is not set"), HasSubstr(kElsewhere),
                             HasSubstr("cadre token new FILE"))));
  // Rank 0's own machine, which knows that it has company.
  EXPECT_THAT(MeetAtAddress({"0.0.0.0", 29500}, kOwn, false),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("several nodes")));
  // Several launchers on one machine.
  EXPECT_OK(MeetAtAddress({"127.0.0.1", 29500}, kOwn, false));
}

TEST(AddressMeetingTest, WithOneRankZeroListensExactlyThere) {
  const auto meeting = MeetAtAddress({"127.0.0.1", 0}, kShared, std::nullopt);
  ASSERT_OK(meeting);
  const auto door = (*meeting)->Open();
  ASSERT_OK(door);
  EXPECT_THAT(sockets::EndpointOf(door->listener), StartsWith("127.0.0.1:"));
  EXPECT_EQ((*meeting)->Advice(), "");
}

// As in a cluster where names come with the machines that have them.
TEST(AddressMeetingTest, ANameThatIsNotKnownYetIsAskedForAgain) {
  const auto meeting = MeetAtAddress({"no such host", 29500}, kShared, std::nullopt);
  ASSERT_OK(meeting);
  EXPECT_THAT((*meeting)->Find(),
              StatusIs(StatusCode::kNotFound, HasSubstr("no address is known for 'no such host'")));
}

TEST(AddressMeetingTest, AnAddressThatLeadsHereFromElsewhereIsServedAtAll) {
  const auto listener = ListenAsHost(kElsewhere, 0);
  ASSERT_OK(listener);
  EXPECT_THAT(sockets::AddressOf(listener->get()), ::testing::AnyOf("::", "0.0.0.0"));
}

TEST(AddressMeetingTest, APortThatIsTakenIsNamed) {
  const auto other = sockets::Listen("127.0.0.1");
  ASSERT_OK(other);
  const std::string endpoint = sockets::EndpointOf(*other);
  const auto port = static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.find(':') + 1)));
  for (const environment::Secret& secret : {kOwn, kShared}) {
    const auto meeting = MeetAtAddress({"127.0.0.1", port}, secret, true);
    ASSERT_OK(meeting);
    EXPECT_THAT((*meeting)->Open(),
                StatusIs(StatusCode::kUnavailable,
                         AllOf(HasSubstr(endpoint), HasSubstr("Address already in use"))));
  }
}

}  // namespace
}  // namespace cadre::launched
