// Tests with a real etcd: what is appended is there exactly once, whatever happens to etcd or to
// the leadership.
#include "rendezvous/log/etcd_log.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/log/compactor_for_test.h"
#include "rendezvous/log/etcd_client.h"
#include "rendezvous/log/etcd_leadership.h"
#include "tests/testing/certificates.h"
#include "tests/testing/etcd_process.h"

namespace cadre::log {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

v1::Record Written(const std::string& key, const std::string& value = "v") {
  v1::Record record;
  record.set_job("job");
  record.mutable_key_written()->set_key(key);
  record.mutable_key_written()->set_value(value);
  return record;
}

std::vector<std::string> Keys(const std::vector<v1::Record>& records) {
  std::vector<std::string> keys;
  for (const v1::Record& record : records) keys.push_back(record.key_written().key());
  return keys;
}

class EtcdLogTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdProcess::IsInstalled()) GTEST_SKIP() << "needs Debian's etcd-server";
    ASSERT_TRUE(etcd_.Start());
    options_.endpoints = {etcd_.endpoint()};
    options_.prefix = "/test/";
    Connect();
  }
  void Connect() {
    auto client = EtcdClient::Make(options_);
    ASSERT_OK(client);
    client_ = *std::move(client);
  }
  std::unique_ptr<Leadership> Lead() {
    Leadership::Options options;
    options.client = client_;
    options.prefix = options_.prefix;
    options.address = "here";
    options.unconfirmed_limit = absl::Minutes(10);
    // Longer than any pause of etcd here.
    options.ttl = absl::Minutes(1);
    auto outcome = Leadership::Campaign(options);
    EXPECT_OK(outcome);
    EXPECT_NE(outcome->won, nullptr) << outcome->leader << " leads";
    return std::move(outcome->won);
  }
  EtcdLogOptions LogOptions(const Leadership& leadership) {
    EtcdLogOptions options;
    options.client = client_;
    options.prefix = options_.prefix;
    options.leader_key = leadership.key();
    options.leader_revision = leadership.create_revision();
    options.new_server_id = 4711;
    options.clock = {"boot", 1000000};
    options.piece_bytes_max = piece_bytes_max_;
    return options;
  }
  OpenedLog Open(const Leadership& leadership) {
    auto opened = OpenEtcdLog(LogOptions(leadership));
    EXPECT_OK(opened);
    return opened.ok() ? *std::move(opened) : OpenedLog();
  }
  // The records that the next leader finds.
  std::vector<std::string> NextLeaderFinds(std::unique_ptr<Leadership> old) {
    old.reset();
    const auto leadership = Lead();
    return Keys(Open(*leadership).records);
  }

  EtcdProcess etcd_;
  EtcdOptions options_;
  std::shared_ptr<EtcdClient> client_;
  size_t piece_bytes_max_ = 1 << 20;
};

TEST_F(EtcdLogTest, TheNextLeaderFindsWhatWasAppended) {
  auto leadership = Lead();
  {
    OpenedLog opened = Open(*leadership);
    EXPECT_EQ(opened.log->server_id(), 4711u);
    EXPECT_TRUE(opened.records.empty());
    EXPECT_OK(opened.log->Append({Written("a"), Written("b")}));
    EXPECT_OK(opened.log->Append({Written("c")}));
  }
  leadership.reset();
  leadership = Lead();
  EtcdLogOptions options = LogOptions(*leadership);
  options.new_server_id = 4712;
  const auto opened = OpenEtcdLog(options);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->log->server_id(), 4711u);
  EXPECT_THAT(Keys(opened->records), ElementsAre("a", "b", "c"));
}

TEST_F(EtcdLogTest, TimesAreMovedToTheClockOfTheNextLeader) {
  auto leadership = Lead();
  v1::Record record;
  record.mutable_job_created()->mutable_job()->mutable_times()->set_created_us(5000);
  ASSERT_OK(Open(*leadership).log->Append({record}));
  leadership.reset();
  leadership = Lead();
  EtcdLogOptions options = LogOptions(*leadership);
  // The machine was booted a second later, so its monotonic clock shows a second less.
  options.clock = {"another boot", 2000000};
  const auto opened = OpenEtcdLog(options);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->records[0].job_created().job().times().created_us(), 5000 - 1000000);
}

// The batch is far over etcd's limits of 128 operations and 1.5 MiB for one transaction.
TEST_F(EtcdLogTest, ABatchOfAnySizeIsWhole) {
  auto leadership = Lead();
  std::vector<v1::Record> batch;
  std::vector<std::string> keys;
  for (int i = 0; i < 400; ++i) {
    keys.push_back(absl::StrCat("key", i));
    batch.push_back(Written(keys.back(), std::string(32 << 10, static_cast<char>(i))));
  }
  batch[7].mutable_key_written()->set_value(std::string(3 << 20, 'x'));
  {
    OpenedLog opened = Open(*leadership);
    ASSERT_OK(opened.log->Append(batch));
    EXPECT_TRUE(opened.log->WantsCompaction());
  }
  leadership.reset();
  leadership = Lead();
  const OpenedLog opened = Open(*leadership);
  ASSERT_THAT(Keys(opened.records), ElementsAreArray(keys));
  for (size_t i = 0; i < batch.size(); ++i) {
    EXPECT_EQ(opened.records[i].SerializeAsString(), batch[i].SerializeAsString()) << i;
  }
}

TEST_F(EtcdLogTest, ACompactionTakesThePlaceOfAllRecords) {
  piece_bytes_max_ = 100;
  auto leadership = Lead();
  {
    OpenedLog opened = Open(*leadership);
    for (int i = 0; i < 20; ++i) {
      ASSERT_OK(opened.log->Append({Written("k", std::string(1 << 10, 'x'))}));
    }
    ASSERT_OK(CompactTo({Written("snapshot", std::string(1 << 10, 'y'))}, *opened.log));
    EXPECT_FALSE(opened.log->WantsCompaction());
    ASSERT_OK(opened.log->Append({Written("after")}));
  }
  etcdserverpb::RangeRequest all;
  all.set_key("/test/log/");
  all.set_range_end("/test/log0");
  const auto left = client_->Range(all);
  ASSERT_OK(left);
  EXPECT_LT(left->kvs_size(), 15);
  EXPECT_THAT(NextLeaderFinds(std::move(leadership)), ElementsAre("snapshot", "after"));
}

TEST_F(EtcdLogTest, WhatIsAppendedDuringACompactionStaysBehindTheSnapshot) {
  piece_bytes_max_ = 100;
  auto leadership = Lead();
  {
    OpenedLog opened = Open(*leadership);
    ASSERT_OK(opened.log->Append({Written("a", std::string(1 << 10, 'x'))}));
    ASSERT_OK(opened.log->Append({Written("b")}));
    ReadySnapshot compactor({Written("a and b")}, [&] {
      ASSERT_OK(opened.log->Append({Written("c", std::string(1 << 10, 'x'))}));
      ASSERT_OK(opened.log->Append({Written("d")}));
    });
    const std::atomic<bool> stop{false};
    ASSERT_OK(opened.log->Compact(compactor, stop));
    EXPECT_EQ(compactor.shown().size(), 2u);
    ASSERT_OK(opened.log->Append({Written("e")}));
  }
  EXPECT_THAT(NextLeaderFinds(std::move(leadership)), ElementsAre("a and b", "c", "d", "e"));
}

TEST_F(EtcdLogTest, ADeposedLeaderWritesNothing) {
  auto first = Lead();
  std::vector<absl::Status> told;
  EtcdLogOptions options = LogOptions(*first);
  options.on_deposed = [&](absl::Status why) { told.push_back(std::move(why)); };
  auto old = OpenEtcdLog(options);
  ASSERT_OK(old);
  ASSERT_OK(old->log->Append({Written("a")}));
  // The lease ends without the leader's knowledge.
  first.reset();
  const auto second = Lead();
  OpenedLog current = Open(*second);
  EXPECT_THAT(old->log->Append({Written("stale")}),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the server at here does")));
  EXPECT_THAT(CompactTo({Written("stale")}, *old->log), StatusIs(absl::StatusCode::kAborted));
  ASSERT_EQ(told.size(), 1u);
  ASSERT_OK(current.log->Append({Written("b")}));
  EXPECT_THAT(old->log->Append({Written("stale")}), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(Keys(Open(*second).records), ElementsAre("a", "b"));
}

// Fault (state): A leader dies before a batch is completely in etcd -> The next leader ignores that
// batch
TEST_F(EtcdLogTest, AnUnfinishedBatchOfADeadLeaderCountsForNothing) {
  auto leadership = Lead();
  OpenedLog opened = Open(*leadership);
  ASSERT_OK(opened.log->Append({Written("a")}));
  // Writes the first piece of a batch whose leader was killed before the second.
  v1::EtcdLogPiece piece;
  piece.set_bytes("half a batch");
  etcdserverpb::TxnRequest request;
  PutKey("/test/log/0000000000000002", piece.SerializeAsString(), 0, request.add_success());
  ASSERT_OK(client_->Txn(request));
  leadership.reset();
  leadership = Lead();
  OpenedLog next = Open(*leadership);
  EXPECT_THAT(Keys(next.records), ElementsAre("a"));
  ASSERT_OK(next.log->Append({Written("b")}));
  EXPECT_THAT(NextLeaderFinds(std::move(leadership)), ElementsAre("a", "b"));
}

TEST_F(EtcdLogTest, WhileEtcdIsAwayNothingIsAppendedAndAfterwardsEverythingIsOnce) {
  auto leadership = Lead();
  OpenedLog opened = Open(*leadership);
  ASSERT_OK(opened.log->Append({Written("a")}));
  etcd_.Kill();
  EXPECT_THAT(opened.log->Append({Written("b")}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("etcd at 127.0.0.1:")));
  ASSERT_TRUE(etcd_.Start());
  absl::Status appended = opened.log->Append({Written("b"), Written("c")});
  while (absl::IsUnavailable(appended)) {
    appended = opened.log->Append({Written("b"), Written("c")});
  }
  EXPECT_OK(appended);
  EXPECT_THAT(NextLeaderFinds(std::move(leadership)), ElementsAre("a", "b", "c"));
}

// The answer is lost but the write is not: it takes effect when etcd continues.
//
// Fault (state): etcd's answer to a write is lost -> The write counts once
TEST_F(EtcdLogTest, AWriteWhoseAnswerIsLostIsThereOnce) {
  auto leadership = Lead();
  OpenedLog opened = Open(*leadership);
  ASSERT_OK(opened.log->Append({Written("a")}));
  etcd_.Pause();
  EXPECT_THAT(opened.log->Append({Written("b")}), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(CompactTo({Written("never")}, *opened.log), StatusIs(absl::StatusCode::kUnavailable));
  etcd_.Resume();
  absl::Status appended;
  do {
    appended = opened.log->Append({Written("b"), Written("c")});
  } while (absl::IsUnavailable(appended));
  EXPECT_OK(appended);
  EXPECT_THAT(NextLeaderFinds(std::move(leadership)), ElementsAre("a", "b", "c"));
}

TEST_F(EtcdLogTest, ACompactionWhoseAnswerIsLostLosesNothing) {
  auto leadership = Lead();
  OpenedLog opened = Open(*leadership);
  ASSERT_OK(opened.log->Append({Written("a")}));
  ASSERT_OK(opened.log->Append({Written("b")}));
  etcd_.Pause();
  EXPECT_THAT(CompactTo({Written("a and b")}, *opened.log),
              StatusIs(absl::StatusCode::kUnavailable));
  etcd_.Resume();
  absl::Status appended;
  do {
    appended = opened.log->Append({Written("c")});
  } while (absl::IsUnavailable(appended));
  EXPECT_OK(appended);
  const std::vector<std::string> found = NextLeaderFinds(std::move(leadership));
  // Both outcomes are correct; a mixture is not.
  if (found.size() == 2) {
    EXPECT_THAT(found, ElementsAre("a and b", "c"));
  } else {
    EXPECT_THAT(found, ElementsAre("a", "b", "c"));
  }
}

// It takes effect after a read that found the old head, and before the write that follows.
//
// Fault (state): etcd's answer to a compaction is lost, or the compaction is carried out late ->
// Nothing is lost
TEST_F(EtcdLogTest, ACompactionWhoseAnswerIsLost_AndThatComesLate_LosesNothing) {
  // For the log, a transaction that etcd refuses for its size may have taken effect.
  piece_bytes_max_ = 4 << 20;
  const std::string too_large(3 << 20, 'x');
  auto leadership = Lead();
  OpenedLog opened = Open(*leadership);
  ASSERT_OK(opened.log->Append({Written("a")}));
  ASSERT_OK(opened.log->Append({Written("b")}));
  EXPECT_FALSE(CompactTo({Written("a and b", too_large)}, *opened.log).ok());
  EXPECT_FALSE(opened.log->Append({Written("c", too_large)}).ok());
  // A second log of the same leader makes the write that takes effect late.
  ASSERT_OK(CompactTo({Written("a and b")}, *Open(*leadership).log));
  EXPECT_FALSE(opened.log->Append({Written("c", too_large)}).ok());
  // The append that followed takes effect too. Its caller got an error and repeats it.
  ASSERT_OK(Open(*leadership).log->Append({Written("c")}));
  EXPECT_OK(opened.log->Append({Written("c")}));
  EXPECT_THAT(NextLeaderFinds(std::move(leadership)), ElementsAre("a and b", "c"));
}

TEST_F(EtcdLogTest, AnotherFormatIsRefused) {
  auto leadership = Lead();
  for (const auto& [format, why] :
       {std::make_pair(2,
                       "has format 2, of an older version of cadre; this one reads format 3: run "
                       "the version that wrote it, or give another --etcd-prefix to begin with "
                       "an empty state"),
        std::make_pair(4, "has format 4, of a newer version of cadre")}) {
    v1::EtcdLogHead head;
    head.set_format(format);
    head.set_server_id(1);
    etcdserverpb::TxnRequest request;
    PutKey("/test/head", head.SerializeAsString(), 0, request.add_success());
    ASSERT_OK(client_->Txn(request));
    EXPECT_THAT(OpenEtcdLog(LogOptions(*leadership)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr(absl::StrCat("the state in etcd under /test/ ", why))));
  }
}

TEST_F(EtcdLogTest, MissingPiecesAreRefused) {
  auto leadership = Lead();
  ASSERT_OK(Open(*leadership).log->Append({Written("a")}));
  etcdserverpb::TxnRequest request;
  request.add_success()->mutable_request_delete_range()->set_key("/test/log/0000000000000001");
  ASSERT_OK(client_->Txn(request));
  EXPECT_THAT(OpenEtcdLog(LogOptions(*leadership)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("under /test/ is damaged")));
}

TEST_F(EtcdLogTest, OverTls_BothSidesShowACertificate) {
  EtcdProcess etcd;
  const std::string certificates = MakeCertificates();
  etcd.UseTls(certificates);
  ASSERT_TRUE(etcd.Start());
  options_.endpoints = {etcd.endpoint()};
  Connect();
  EXPECT_THAT(client_->Grant(absl::Seconds(5)), StatusIs(absl::StatusCode::kUnavailable));
  options_.security.tls_dir = certificates;
  Connect();
  auto leadership = Lead();
  ASSERT_OK(Open(*leadership).log->Append({Written("a")}));
  EXPECT_THAT(NextLeaderFinds(std::move(leadership)), ElementsAre("a"));
}

TEST_F(EtcdLogTest, OverTls_CertificatesThatWereReplacedAreTheNextConnections) {
  EtcdProcess etcd;
  options_.security.tls_dir = MakeCertificates();
  etcd.UseTls(options_.security.tls_dir);
  ASSERT_TRUE(etcd.Start());
  options_.endpoints = {etcd.endpoint()};
  Connect();
  EXPECT_OK(client_->Grant(absl::Seconds(5)));
  etcd.Kill();
  EXPECT_THAT(client_->Grant(absl::Seconds(5)), StatusIs(absl::StatusCode::kUnavailable));
  std::filesystem::copy(
      MakeCertificates(), options_.security.tls_dir,
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  ASSERT_TRUE(etcd.Start());
  EXPECT_OK(client_->Grant(absl::Seconds(5)));
}

// Fault (state): A member of etcd does not answer -> The other members are asked
TEST_F(EtcdLogTest, OneMemberThatDoesNotAnswerIsPassedOver) {
  EtcdProcess silent;
  ASSERT_TRUE(silent.Start());
  silent.Pause();
  options_.endpoints = {silent.endpoint(), etcd_.endpoint()};
  Connect();
  auto leadership = Lead();
  ASSERT_OK(Open(*leadership).log->Append({Written("a")}));
  EXPECT_THAT(NextLeaderFinds(std::move(leadership)), ElementsAre("a"));
  silent.Resume();
}

// --- elections in a real etcd ---

constexpr absl::Duration kPatience = absl::Seconds(20);

class LeadershipTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdProcess::IsInstalled()) GTEST_SKIP() << "needs Debian's etcd-server";
    ASSERT_TRUE(etcd_.Start());
    EtcdOptions options;
    options.endpoints = {etcd_.endpoint()};
    auto client = EtcdClient::Make(options);
    ASSERT_OK(client);
    client_ = *std::move(client);
  }
  Leadership::Outcome Campaign(const std::string& address) {
    auto outcome = Leadership::Campaign({client_, "/test/", address, unconfirmed_limit_, ttl_});
    EXPECT_OK(outcome);
    return outcome.ok() ? *std::move(outcome) : Leadership::Outcome();
  }

  EtcdProcess etcd_;
  std::shared_ptr<EtcdClient> client_;
  absl::Duration unconfirmed_limit_ = absl::Minutes(10);
  // Longer than any pause on a busy machine.
  absl::Duration ttl_ = absl::Seconds(5);
};

TEST_F(LeadershipTest, OneLeadsAndTheOthersLearnWho) {
  Leadership::Outcome first = Campaign("a:1");
  ASSERT_NE(first.won, nullptr);
  EXPECT_EQ(first.leader, "a:1");
  const Leadership::Outcome second = Campaign("b:2");
  EXPECT_EQ(second.won, nullptr);
  EXPECT_EQ(second.leader, "a:1");
}

TEST_F(LeadershipTest, WhoGivesItUpIsFollowedAtOnce) {
  Leadership::Outcome first = Campaign("a:1");
  const int64_t revision = first.won->create_revision();
  first.won.reset();
  const Leadership::Outcome second = Campaign("b:2");
  ASSERT_NE(second.won, nullptr);
  EXPECT_GT(second.won->create_revision(), revision);
}

TEST_F(LeadershipTest, ItOutlivesItsLeaseByBeingRenewed) {
  const Leadership::Outcome first = Campaign("a:1");
  EXPECT_OK(first.won->AwaitLoss(ttl_ + absl::Seconds(1)));
  EXPECT_EQ(Campaign("b:2").won, nullptr);
}

TEST_F(LeadershipTest, ALeaseThatHasEndedIsNoticed) {
  const Leadership::Outcome first = Campaign("a:1");
  etcdserverpb::RangeRequest request;
  request.set_key(first.won->key());
  const auto found = client_->Range(request);
  ASSERT_OK(found);
  ASSERT_OK(client_->Revoke(found->kvs(0).lease()));
  EXPECT_THAT(first.won->AwaitLoss(kPatience),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has expired")));
}

TEST_F(LeadershipTest, AnEtcdThatIsAwayForAMomentChangesNothing) {
  const Leadership::Outcome first = Campaign("a:1");
  etcd_.Kill();
  ASSERT_TRUE(etcd_.Start());
  EXPECT_OK(first.won->AwaitLoss(ttl_ + absl::Seconds(1)));
  EXPECT_EQ(Campaign("b:2").leader, "a:1");
}

TEST_F(LeadershipTest, AnEtcdThatStaysAwayEndsIt) {
  unconfirmed_limit_ = absl::Seconds(1);
  const Leadership::Outcome first = Campaign("a:1");
  etcd_.Kill();
  absl::Status lost;
  const MonoTime until = MonoNow() + kPatience;
  while (lost.ok() && MonoNow() < until) lost = first.won->AwaitLoss(absl::Milliseconds(50));
  EXPECT_THAT(lost, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has not confirmed")));
}

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
