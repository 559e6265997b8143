#include "rendezvous/log/etcd_client.h"

#include "gtest/gtest.h"

namespace cadre::log {
namespace {

TEST(EtcdReason, IsTheSameForTheSameFault) {
  const absl::StatusCode unavailable = absl::StatusCode::kUnavailable;
  for (const char* record : {"AAAA", "A"}) {
    EXPECT_EQ(EtcdReason(unavailable,
                         std::string("DNS resolution failed for foo:2379: C-ares status is not "
                                     "ARES_SUCCESS qtype=") +
                             record + " name=foo is_balancer=0: Domain name not found"),
              "the name does not resolve");
  }
  EXPECT_EQ(EtcdReason(unavailable, "failed to connect: Connection refused"), "connection refused");
  EXPECT_EQ(EtcdReason(absl::StatusCode::kDeadlineExceeded, "Deadline Exceeded"), "no answer");
  EXPECT_EQ(EtcdReason(unavailable, "etcdserver: no leader"), "etcdserver: no leader");
}

}  // namespace
}  // namespace cadre::log
