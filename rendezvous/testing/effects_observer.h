// Observer: checks what must hold of a core's records, messages and replies over one history.
#ifndef CADRE_RENDEZVOUS_TESTING_EFFECTS_OBSERVER_H_
#define CADRE_RENDEZVOUS_TESTING_EFFECTS_OBSERVER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/record.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/step/effects.h"

namespace cadre {

// Returns the effects of a step as text by which two runs can be compared.
inline std::string TextOf(const Effects& effects) {
  std::string text;
  for (const v1::Record& record : effects.append) text += record.ShortDebugString() + "\n";
  for (const SendToStream& send : effects.send) {
    absl::StrAppend(&text, "to ", send.stream.value, " ", send.message.ShortDebugString(), "\n");
  }
  for (const ReplyToCall& reply : effects.reply) {
    absl::StrAppend(&text, "call ", reply.call.value, " ", reply.reply.ShortDebugString(), "\n");
  }
  for (const CloseStream& close : effects.close) {
    absl::StrAppend(&text, "close ", close.stream.value, " ", close.status.ToString(), "\n");
  }
  for (const Note& note : effects.notes) absl::StrAppend(&text, note.job, ": ", note.text, "\n");
  return text;
}

// What the records of one job say, tracked independently of the core.
struct RecordedJob {
  uint64_t generation = 0;
  uint32_t restart_count = 0;
  bool ended = true;
  // Members of the generation whose workers have not been declared gone.
  std::set<std::string> busy;
  std::set<uint32_t> ranks;
  uint32_t world_size = 0;
};

// Watches the effects of one history.
class Observer {
 public:
  void Watch(const Effects& effects) {
    for (const v1::Record& record : effects.append) WatchRecord(record);
    for (const SendToStream& send : effects.send) WatchMessage(send);
    for (const ReplyToCall& reply : effects.reply) {
      EXPECT_EQ(waiting_.erase(reply.call.value), 1u) << "an answer nobody waits for";
    }
  }
  void Called(CallId call) { waiting_.insert(call.value); }
  void Dropped(CallId call) { waiting_.erase(call.value); }
  // A server that was killed answers no call; the clients repeat their requests.
  void Restarted() { waiting_.clear(); }
  const std::set<uint64_t>& waiting() const { return waiting_; }

 private:
  void WatchRecord(const v1::Record& record) {
    RecordedJob& job = jobs_[record.job()];
    if (record.has_job_created()) {
      EXPECT_TRUE(job.ended) << "two runs at once";
      job.ended = false;
      job.restart_count = 0;
      job.busy.clear();
      return;
    }
    EXPECT_FALSE(job.ended) << "a record after the end: " << record.ShortDebugString();
    if (record.has_generation_formed()) {
      const saved::Generation& formed = record.generation_formed().generation();
      EXPECT_GT(formed.number(), job.generation);
      EXPECT_EQ(formed.restart_count(), job.restart_count);
      EXPECT_TRUE(job.busy.empty()) << *job.busy.begin() << " still has workers of an older one";
      job.generation = formed.number();
      job.ranks.clear();
      job.world_size = 0;
      for (const saved::Member& member : formed.members()) {
        EXPECT_TRUE(job.busy.insert(member.node()).second) << "a node twice";
        EXPECT_EQ(member.first_rank(), job.world_size);
        job.world_size += member.slots();
      }
    }
    if (record.has_gathering_began()) {
      EXPECT_EQ(record.gathering_began().restart_count(), job.restart_count + 1);
      job.restart_count = record.gathering_began().restart_count();
    }
    if (record.has_node_cleared()) job.busy.erase(record.node_cleared().node());
    if (record.has_node_removed()) job.busy.erase(record.node_removed().node());
    if (record.has_job_ended()) job.ended = true;
  }

  void WatchMessage(const SendToStream& send) {
    const RecordedJob& job = jobs_[send.message.job()];
    if (send.message.has_finished()) {
      EXPECT_TRUE(job.ended) << "announced and not recorded";
    }
    if (!send.message.has_assign()) return;
    const v1::Assign& assign = send.message.assign();
    EXPECT_EQ(send.message.generation(), job.generation) << "announced and not recorded";
    EXPECT_EQ(assign.restart_count(), job.restart_count);
    EXPECT_EQ(assign.world_size(), job.world_size);
    EXPECT_LE(assign.first_rank() + assign.local_world_size(), job.world_size);
  }

  std::map<std::string, RecordedJob> jobs_;
  std::set<uint64_t> waiting_;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_TESTING_EFFECTS_OBSERVER_H_
