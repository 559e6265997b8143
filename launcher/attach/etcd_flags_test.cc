#include "launcher/attach/etcd_flags.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<std::optional<log::EtcdOptions>> From(std::map<std::string, std::string> flags) {
  Parsed parsed;
  for (const auto& [name, value] : flags) parsed.flags[name] = {value};
  return EtcdFrom(Settings(std::move(parsed), {}, {}), kDefaultEtcdPrefix);
}

TEST(EtcdFromTest, NotGiven_IsNothing) {
  const auto etcd = From({{"state-dir", "x"}});
  ASSERT_OK(etcd);
  EXPECT_FALSE(etcd->has_value());
}

TEST(EtcdFromTest, Urls_BecomeEndpoints) {
  const auto etcd = From({{"etcd", "http://a:1,http://b, http://[::1]:3/"}});
  ASSERT_OK(etcd);
  EXPECT_THAT((*etcd)->endpoints, ElementsAre("a:1", "b:2379", "[::1]:3"));
  EXPECT_EQ((*etcd)->prefix, "/cadre/server/");
  EXPECT_EQ((*etcd)->security.tls_dir, "");
}

TEST(EtcdFromTest, Prefix_EndsInOneSlash) {
  EXPECT_EQ((*From({{"etcd", "http://a"}, {"etcd-prefix", "/x"}}))->prefix, "/x/");
  EXPECT_EQ((*From({{"etcd", "http://a"}, {"etcd-prefix", "/x/"}}))->prefix, "/x/");
}

TEST(EtcdFromTest, Tls_NeedsItsDirectoryAndHttps) {
  const auto etcd = From({{"etcd", "https://a"}, {"etcd-tls-dir", "certificates"}});
  ASSERT_OK(etcd);
  EXPECT_EQ((*etcd)->security.tls_dir, "certificates");
  EXPECT_THAT(From({{"etcd", "https://a"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--etcd-tls-dir")));
  EXPECT_THAT(From({{"etcd", "http://a"}, {"etcd-tls-dir", "x"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("https")));
}

TEST(EtcdFromTest, Bad_NamesTheFlag) {
  for (const char* bad : {"", "ftp://a", "notaurl", "a:2379", "http://a:0", "http://", "a,,b"}) {
    EXPECT_THAT(From({{"etcd", bad}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--etcd: ")))
        << bad;
  }
  EXPECT_THAT(From({{"etcd", "http://a"}, {"state-dir", "x"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("exclude each other")));
  EXPECT_THAT(From({{"etcd", "http://a"}, {"etcd-prefix", "a b"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--etcd-prefix")));
}

}  // namespace
}  // namespace cadre::launcher
