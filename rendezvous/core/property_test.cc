// Property test: runs thousands of random histories of a few jobs and nodes, each from a seed, and
// checks after every step what must always hold.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rendezvous/core/core.h"
#include "rendezvous/testing/effects_observer.h"
#include "rendezvous/testing/test_messages.h"

namespace cadre {
namespace {

constexpr int kHistories = 700;
constexpr int kEvents = 200;
constexpr int kMaxDrainSteps = 20000;

// The server was killed and restarted from its records.
struct ServerRestarted {};

struct Happening {
  MonoTime at;
  std::variant<Event, ServerRestarted> what;
};

// A simulated agent: it answers orders, sometimes wrongly.
struct Agent {
  Sender self;
  uint32_t slots = 1;
  uint64_t stream = 0;       // 0: not connected
  std::vector<int> workers;  // 0 assigned, 1 running, 2 gone
  bool stop = false;
  bool finished = false;
};

class History {
 public:
  explicit History(uint64_t seed)
      : random_(seed), calm_(seed % 2 == 0), core_(std::make_unique<Core>(Config())) {
    for (int j = 0; j < 2; ++j) {
      v1::JobSpec spec = SpecOf(absl::StrCat("job", j), 1 + Pick(3), 3 + Pick(2), Pick(3));
      if (Chance(40)) spec.mutable_nodes()->set_max(spec.nodes().min());
      if (Chance(30)) spec.mutable_elastic()->set_scale_up(v1::ElasticPolicy::IMMEDIATELY);
      if (Chance(20)) spec.mutable_timeouts()->mutable_total()->set_seconds(40);
      if (Chance(20)) spec.mutable_restart()->mutable_window()->set_seconds(20);
      spec.mutable_timeouts()->mutable_stop_grace()->set_seconds(2);
      spec.mutable_timeouts()->mutable_start()->set_seconds(20);
      spec.mutable_rendezvous()->mutable_join_timeout()->set_seconds(30);
      for (int n = 0; n < 5; ++n) {
        Agent agent;
        agent.self = {spec.name(), absl::StrCat("n", n), next_incarnation_++, 0};
        agent.slots = 1 + Pick(2);
        agents_.push_back(agent);
      }
      specs_[spec.name()] = spec;
    }
  }

  void Run() {
    for (int i = 0; i < kEvents && !::testing::Test::HasFailure(); ++i) {
      now_ = now_ + absl::Milliseconds(Chance(calm_ ? 99 : 80) ? Pick(100) : Pick(12000));
      while (core_->NextDeadline() <= now_ && !Chance(5)) Step(core_->NextDeadline(), Tick{});
      Act();
    }
    Drain();
  }

  const std::vector<Happening>& happenings() const { return happenings_; }
  const std::string& text() const { return text_; }
  static CoreConfig Config() {
    CoreConfig config;
    config.lease = absl::Seconds(4);
    config.stop_margin = absl::Seconds(2);
    return config;
  }
  std::map<v1::JobPhase, int> endings() const {
    std::map<v1::JobPhase, int> endings;
    for (const v1::JobStatus& status : core_->AllStatuses(now_)) ++endings[status.phase()];
    return endings;
  }

 private:
  int Pick(int n) { return static_cast<int>(random_() % n); }
  bool Chance(int percent) { return Pick(100) < percent; }

  void Step(MonoTime at, const Event& event) {
    happenings_.push_back({at, event});
    const Effects effects = core_->Step(at, event);
    text_ += TextOf(effects);
    for (const v1::Record& record : effects.append) records_.push_back(record);
    observer_.Watch(effects);
    const absl::Status holds = core_->CheckInvariants();
    EXPECT_TRUE(holds.ok()) << holds;
    EXPECT_GT(core_->NextDeadline(), at) << "the host would spin";
    for (const SendToStream& send : effects.send) Receive(send);
    for (const CloseStream& close : effects.close) {
      for (Agent& agent : agents_) {
        if (agent.stream == close.stream.value) agent.stream = 0;
      }
      // The host reports the end of every stream.
      pending_closed_.push_back(close.stream);
    }
    if (Chance(10)) CheckReplay();
  }

  void Receive(const SendToStream& send) {
    for (Agent& agent : agents_) {
      if (agent.stream != send.stream.value) continue;
      if (send.message.has_assign() && send.message.generation() != agent.self.generation) {
        EXPECT_GT(send.message.generation(), agent.self.generation);
        agent.self.generation = send.message.generation();
        agent.workers.assign(send.message.assign().local_world_size(), 0);
        agent.stop = false;
      }
      if (send.message.has_stop() && send.message.generation() == agent.self.generation) {
        agent.stop = true;
      }
      if (send.message.has_finished()) agent.finished = true;
    }
  }

  void CheckReplay() {
    for (const std::vector<v1::Record>& records : {records_, core_->Snapshot()}) {
      Core other(Config());
      for (const v1::Record& record : records) other.Apply(record);
      EXPECT_EQ(other.DebugString(), core_->DebugString());
    }
  }

  void RestartServer() {
    happenings_.push_back({now_, ServerRestarted{}});
    text_ += "server restarted\n";
    core_ = std::make_unique<Core>(Config());
    can_save_ = true;
    for (const v1::Record& record : records_) core_->Apply(record);
    for (Agent& agent : agents_) agent.stream = 0;
    pending_closed_.clear();
    observer_.Restarted();
  }

  void Send(const Agent& agent, v1::NodeMessage message) {
    Step(now_, NodeMessageReceived{StreamId{agent.stream}, std::move(message)});
  }

  void Act() {
    if (!pending_closed_.empty() && Chance(50)) {
      const StreamId stream = pending_closed_.back();
      pending_closed_.pop_back();
      return Step(now_, StreamClosed{stream});
    }
    const int what = Pick(1000);
    if (what < 6) return RestartServer();
    if (what < (calm_ ? 7 : 16)) return Step(now_, JobCancelled{"job0", "enough", Pick(20)});
    if (what < 30) return Step(now_, Tick{});
    // The disk is full for a while.
    if (what < 40 && (!calm_ || !can_save_)) {
      can_save_ = !can_save_;
      return Step(now_, CanSave{can_save_});
    }
    if (what < 140) return CallStore();
    if (what < 150) {
      const CallId call{1 + static_cast<uint64_t>(Pick(next_call_))};
      observer_.Dropped(call);
      return Step(now_, StoreCallDropped{call});
    }
    Agent& agent = agents_[Pick(agents_.size())];
    if (agent.stream == 0) return Join(&agent);
    ActAs(&agent);
  }

  void Join(Agent* agent) {
    // Once its workers are gone, the agent may be replaced by a new incarnation.
    if (Chance(25) || agent->finished) {
      agent->self.incarnation = next_incarnation_++;
      agent->self.generation = 0;
      agent->workers.clear();
      agent->stop = agent->finished = false;
    }
    agent->stream = next_stream_++;
    v1::NodeMessage join = JoinFrom(agent->self, specs_[agent->self.job], agent->slots);
    if (Chance(20)) join.mutable_join()->set_wanted_node_rank(Pick(4));
    if (Chance(3)) join.mutable_join()->mutable_spec()->add_command("--other");
    if (Chance(2)) join.mutable_join()->set_slots(0);
    if (Chance(20)) join.mutable_join()->add_expected_nodes("n1");
    Send(*agent, join);
  }

  void ActAs(Agent* agent) {
    const int what = Pick(100);
    if (agent->finished || what < (calm_ ? 1 : 6)) {
      const StreamId stream{agent->stream};
      agent->stream = 0;
      return Step(now_, StreamClosed{stream});
    }
    if (!calm_ && what < 8) return Send(*agent, Nonsense(*agent));
    if (!calm_ && what < 10) {
      v1::NodeMessage leave = MessageFrom(agent->self);
      leave.mutable_leave()->set_cause(Chance(50) ? v1::PREEMPTED : v1::NODE_LOST);
      return Send(*agent, leave);
    }
    if (!calm_ && what < 11) {
      v1::NodeMessage cancel = MessageFrom(agent->self);
      cancel.mutable_cancel()->set_signal(2);
      return Send(*agent, cancel);
    }
    if (what < 14) return Send(*agent, ProgressOrEvidence(*agent));
    if (what < 20) {
      v1::NodeMessage store = MessageFrom(agent->self);
      *store.mutable_store() = SomeRequest(agent->self.job, agent->self.generation);
      return Send(*agent, store);
    }
    if (what < 80 && Work(agent)) return;
    v1::NodeMessage renew = MessageFrom(agent->self);
    renew.mutable_renew();
    Send(*agent, renew);
  }

  // Moves one worker on by a step; returns false if none can move.
  bool Work(Agent* agent) {
    for (size_t i = 0; i < agent->workers.size(); ++i) {
      int& worker = agent->workers[i];
      if (worker == 2) continue;
      if (agent->stop) {
        worker = 2;
        Send(*agent, ExitedFrom(agent->self, i, 0, 15));
      } else if (worker == 0) {
        worker = 1;
        Send(*agent, StartedFrom(agent->self, i));
      } else {
        worker = 2;
        Send(*agent, Chance(calm_ ? 97 : 75) ? ExitedFrom(agent->self, i, 0, 0)
                                             : ExitedFrom(agent->self, i, Pick(3), 9 * Pick(2)));
      }
      return true;
    }
    if (agent->workers.empty() || !(agent->stop || Chance(calm_ ? 3 : 30))) return false;
    Send(*agent, StoppedFrom(agent->self));
    return true;
  }

  // Returns progress or evidence of its workers, sometimes of one that hangs; the rank may not
  // exist.
  v1::NodeMessage ProgressOrEvidence(const Agent& agent) {
    v1::NodeMessage message = MessageFrom(agent.self);
    if (Chance(50)) {
      message.mutable_progress()->set_workers(Pick(3));
      message.mutable_progress()->set_min_step(Pick(9));
      return message;
    }
    message.mutable_evidence()->set_hang(Chance(calm_ ? 2 : 30));
    for (int rank = Pick(4); rank > 0; --rank) {
      v1::RankEvidence* evidence = message.mutable_evidence()->add_ranks();
      evidence->set_local_rank(Pick(5) - 1);
      evidence->set_state(Chance(20) ? "T" : "S");
      evidence->set_phase(static_cast<v1::RankPhase>(Pick(7)));
    }
    return message;
  }

  v1::NodeMessage Nonsense(const Agent& agent) {
    Sender other = agent.self;
    switch (Pick(4)) {
      case 0:
        other.generation += 1;
        return StartedFrom(other, 0);
      case 1:
        other.incarnation += 1;
        return StartedFrom(other, 0);
      case 2:
        return ExitedFrom(other, 7, 1, 0);
      default:
        return MessageFrom(other);
    }
  }

  v1::StoreRequest SomeRequest(const std::string& job, uint64_t generation) {
    v1::StoreRequest request;
    request.set_job(job);
    request.set_generation(generation);
    request.set_rank(Pick(5));
    request.set_client(1 + Pick(3));
    request.set_request_id(Chance(85) ? next_request_++ : 1 + Pick(20));
    request.set_wait_ms(Pick(3) * 2000);
    const std::string key = absl::StrCat("k", Pick(3));
    switch (Pick(7)) {
      case 0:
        request.mutable_set()->set_key(key);
        break;
      case 1:
        request.mutable_get()->set_key(key);
        break;
      case 2:
        request.mutable_add()->set_key("count");
        request.mutable_add()->set_delta(1);
        break;
      case 3:
        request.mutable_delete_()->set_key(key);
        break;
      case 4:
        request.mutable_barrier()->set_name(key);
        break;
      case 5:
        request.mutable_publish_id()->set_communicator(key);
        request.mutable_publish_id()->set_id("id");
        break;
      default:
        request.mutable_get_id()->set_communicator(key);
        break;
    }
    return request;
  }

  void CallStore() {
    const Agent& agent = agents_[Pick(agents_.size())];
    const CallId call{next_call_++};
    observer_.Called(call);
    Step(now_, StoreCalled{call, SomeRequest(agent.self.job, agent.self.generation)});
  }

  // Lets time pass without further events until all that waits has ended.
  void Drain() {
    Step(now_, CanSave{true});
    for (int i = 0; core_->NextDeadline() != MonoTime::Never(); ++i) {
      ASSERT_LT(i, kMaxDrainSteps) << "the core is never done";
      now_ = std::max(now_, core_->NextDeadline());
      Step(now_, Tick{});
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_TRUE(observer_.waiting().empty()) << "somebody waits for ever";
    for (const v1::JobStatus& status : core_->AllStatuses(now_)) {
      EXPECT_TRUE(status.has_verdict()) << status.name() << " never ended";
    }
    CheckReplay();
  }

  std::mt19937_64 random_;
  // If true few faults happen, so that jobs also succeed.
  const bool calm_;
  std::unique_ptr<Core> core_;
  bool can_save_ = true;
  MonoTime now_ = MonoTime::FromMicros(1000000);
  std::map<std::string, v1::JobSpec> specs_;
  std::vector<Agent> agents_;
  uint64_t next_incarnation_ = 1;
  uint64_t next_stream_ = 1;
  uint64_t next_call_ = 1;
  uint64_t next_request_ = 1;
  std::vector<StreamId> pending_closed_;
  std::vector<v1::Record> records_;
  std::vector<Happening> happenings_;
  std::string text_;
  Observer observer_;
};

// Replays the same events on another core and returns its effects.
std::string Repeat(const std::vector<Happening>& happenings) {
  auto core = std::make_unique<Core>(History::Config());
  std::vector<v1::Record> records;
  std::string text;
  for (const Happening& happening : happenings) {
    if (const auto* event = std::get_if<Event>(&happening.what)) {
      const Effects effects = core->Step(happening.at, *event);
      text += TextOf(effects);
      records.insert(records.end(), effects.append.begin(), effects.append.end());
      continue;
    }
    text += "server restarted\n";
    core = std::make_unique<Core>(History::Config());
    for (const v1::Record& record : records) core->Apply(record);
  }
  return text;
}

TEST(PropertyTest, EveryHistoryKeepsThePromises) {
  std::map<v1::JobPhase, int> endings;
  for (int seed = 1; seed <= kHistories; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    History history(seed);
    history.Run();
    for (const auto& [phase, count] : history.endings()) endings[phase] += count;
    if (seed % 10 == 0) {
      EXPECT_EQ(Repeat(history.happenings()), history.text()) << "not deterministic";
    }
    if (HasFailure()) FAIL() << history.text();
  }
  // Histories that all end in the same way would prove little.
  for (const v1::JobPhase phase : {v1::SUCCEEDED, v1::FAILED, v1::CANCELLED_PHASE}) {
    RecordProperty(v1::JobPhase_Name(phase), endings[phase]);
    EXPECT_GT(endings[phase], kHistories / 50) << v1::JobPhase_Name(phase);
  }
}

}  // namespace
}  // namespace cadre
