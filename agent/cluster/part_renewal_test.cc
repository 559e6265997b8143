#include "agent/cluster/part_renewal.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "agent/cluster/parts_directory.h"
#include "base/bearer_token.h"
#include "base/status_matchers.h"
#include "base/token.h"

namespace cadre::agent {
namespace {

constexpr uint64_t kServer = 7;

std::string Content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class PartRenewalTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string made = ::testing::TempDir() + "/agent_XXXXXX";
    ASSERT_NE(mkdtemp(&made[0]), nullptr);
    token_file_ = made + "/token";
    tls_dir_ = made;
    ASSERT_OK(WriteTokenFile(token_file_, first_));
    std::ofstream(tls_dir_ + "/ca.pem") << "-----BEGIN FIRST-----\n";
    options_.launcher = "/opt/cadre";
    options_.server = "head:29400";
    options_.token = std::make_shared<RenewedToken>(first_, token_file_);
    options_.tls_dir = tls_dir_;
    options_.directory = (*directory_)->path();
    options_.root_too = true;
    renewal_ = std::make_unique<PartRenewal>(options_);
    part_.mutable_part()->set_id(12);
    part_.mutable_part()->set_job("mnist");
    part_.mutable_part()->set_node("n1");
    // Where this is root, as another.
    part_.set_user(geteuid() == 0 ? "nobody" : ThisUser()->name);
    ASSERT_THAT(PreparePart(options_, part_, {}, kServer), IsOk());
  }

  std::string Part(const std::string& file) const {
    return options_.directory + "/part-12/" + file;
  }

  const absl::StatusOr<std::unique_ptr<PartsDirectory>> directory_ = PartsDirectory::Make();
  const std::string first_ = RandomToken(), second_ = RandomToken();
  std::string token_file_;
  std::string tls_dir_;
  PartStartOptions options_;
  std::unique_ptr<PartRenewal> renewal_;
  v1::StartPart part_;
};

TEST_F(PartRenewalTest, ALauncherGetsATokenMadeFromTheNewOne) {
  renewal_->Look();
  EXPECT_EQ(Content(Part("token")), PartToken(first_, kServer, 12, "mnist") + "\n");
  ASSERT_OK(WriteTokenFile(token_file_, second_));
  renewal_->Look();
  EXPECT_EQ(Content(Part("token")), PartToken(second_, kServer, 12, "mnist") + "\n");
  struct stat info = {};
  ASSERT_EQ(stat(Part("token").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, FindUser(part_.user())->uid);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// The file is the user's to write.
TEST_F(PartRenewalTest, WhatTheAgentHasNotSignedIsNotSignedNow) {
  const std::string forged = "part:13:others:0000000000000007:" + std::string(64, '0') + "\n";
  for (const std::string& content :
       {forged, PartToken(RandomToken(), kServer, 13, "others") + "\n",
        UserToken(first_, kServer, "ann", absl::InfiniteFuture()) + "\n", std::string()}) {
    std::ofstream(Part("token")) << content;
    ASSERT_OK(WriteTokenFile(token_file_, RandomToken()));
    renewal_->Look();
    EXPECT_EQ(Content(Part("token")), content);
  }
}

TEST_F(PartRenewalTest, ALauncherGetsTheNewAuthority) {
  std::ofstream(tls_dir_ + "/ca.pem") << "-----BEGIN SECOND-----\n";
  renewal_->Look();
  EXPECT_EQ(Content(Part("ca.pem")), "-----BEGIN SECOND-----\n");
  struct stat info = {};
  ASSERT_EQ(stat(Part("ca.pem").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, FindUser(part_.user())->uid);
}

}  // namespace
}  // namespace cadre::agent
