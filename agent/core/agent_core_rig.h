// Test fixture: feeds events to an agent core and returns its commands as text.
#ifndef CADRE_AGENT_CORE_AGENT_CORE_RIG_H_
#define CADRE_AGENT_CORE_AGENT_CORE_RIG_H_

#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/core/agent_core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/versions.h"

namespace cadre::agent {

inline std::string Up(const v1::NodeMessage& m) {
  switch (m.body_case()) {
    case v1::NodeMessage::kJoin:
      return absl::StrCat("up join port=", m.join().held_port(), " gen=", m.generation());
    case v1::NodeMessage::kRenew:
      return m.renew().number() == 0 ? "up renew" : absl::StrCat("up renew ", m.renew().number());
    case v1::NodeMessage::kWorkerStarted:
      return absl::StrCat("up started ", m.generation(), "/", m.worker_started().local_rank(),
                          m.worker_started().rejoined() ? " rejoined" : "");
    case v1::NodeMessage::kWorkerGaveUp:
      return absl::StrCat("up gave_up ", m.generation(), "/", m.worker_gave_up().local_rank(), " ",
                          m.worker_gave_up().reason());
    case v1::NodeMessage::kWorkerExited:
      return absl::StrCat(
          "up exited ", m.generation(), "/", m.worker_exited().local_rank(), " ",
          m.worker_exited().cause() == 0 ? "OK" : v1::FailureCause_Name(m.worker_exited().cause()),
          m.worker_exited().late() ? " late" : "");
    case v1::NodeMessage::kWorkerRemains:
      return absl::StrCat("up remains ", m.generation(), "/", m.worker_remains().local_rank());
    case v1::NodeMessage::kImports:
      return absl::StrCat("up imports ", m.generation(), " ", m.imports().worker_us(), "us");
    case v1::NodeMessage::kNodeStopped:
      return absl::StrCat("up stopped ", m.generation(), " port=", m.node_stopped().held_port());
    case v1::NodeMessage::kLeave:
      return absl::StrCat("up leave ", v1::FailureCause_Name(m.leave().cause()));
    case v1::NodeMessage::kStore:
      return absl::StrCat("up store ", m.store().client(), "/", m.store().request_id());
    case v1::NodeMessage::kProgress:
      return absl::StrCat("up progress of ", m.progress().workers(),
                          " step=", m.progress().min_step(), "..", m.progress().max_step(),
                          " slowest=", m.progress().slowest_local_rank());
    case v1::NodeMessage::kEvidence: {
      std::string text = absl::StrCat("up evidence", m.evidence().hang() ? " of a hang" : "",
                                      m.evidence().stall() ? " of a standstill" : "");
      for (const v1::RankEvidence& rank : m.evidence().ranks()) {
        absl::StrAppend(&text, " ", rank.local_rank(), rank.overdue() ? "!" : "",
                        rank.absent() ? " absent" : "");
      }
      return text;
    }
    case v1::NodeMessage::kStacks:
      return absl::StrCat("up stacks ", m.stacks().call(), " of ", m.stacks().ranks_size(),
                          m.stacks().why().empty() ? "" : ": ", m.stacks().why());
    case v1::NodeMessage::kCancel:
      return absl::StrCat("up cancel ", m.cancel().signal(),
                          m.cancel().cause() == v1::PREEMPTED ? " PREEMPTED" : "",
                          m.cancel().at_once() ? " at once" : "");
    case v1::NodeMessage::kAgent:
    case v1::NodeMessage::BODY_NOT_SET:
      break;
  }
  return "up nothing";
}

struct Words {
  std::string operator()(const SendToServer& c) const { return Up(c.message); }
  std::string operator()(const BeginJob& c) const {
    return absl::StrCat("begin", c.spec.command().empty() ? "" : " ",
                        absl::StrJoin(c.spec.command(), " "));
  }
  std::string operator()(const StartWorkers& c) const {
    return absl::StrCat("start ", c.generation.number, Kept(c.kept));
  }
  std::string operator()(const StopWorkers& c) const {
    return absl::StrCat("stop ", c.generation, " grace=", absl::FormatDuration(c.grace),
                        Kept(c.kept));
  }
  static std::string Kept(const std::set<uint32_t>& kept) {
    return kept.empty() ? "" : absl::StrCat(" keep ", absl::StrJoin(kept, ","));
  }
  std::string operator()(const HoldWorkersUntil& c) const {
    return absl::StrCat("hold ", c.generation, " until ", c.at.micros() / 1000000, "s");
  }
  std::string operator()(const CollectEvidence& c) const {
    return absl::StrCat("look ", c.generation, c.briefly ? " briefly" : "",
                        " overdue=", absl::StrJoin(c.overdue, ","));
  }
  std::string operator()(const CollectStacks& c) const {
    return absl::StrCat("stacks ", c.generation, " for ", c.ask.call());
  }
  std::string operator()(const AskForCheckpoint& c) const {
    return absl::StrCat("ask for a checkpoint of ", c.generation, " signal=", c.signal);
  }
  std::string operator()(const SignalWorkers& c) const {
    return absl::StrCat("signal ", c.signal, " to ", c.generation, "/",
                        absl::StrJoin(c.local_ranks, ","));
  }
  std::string operator()(const NoteEndOfScript& c) const {
    return absl::StrCat("note ", c.generation, " ", v1::FailureCause_Name(c.cause),
                        c.reason.empty() ? "" : ": ", c.reason);
  }
  std::string operator()(const StoreAnswer& c) const {
    return absl::StrCat("answer ", c.reply.client(), "/", c.reply.request_id(), " ",
                        absl::StatusCodeToString(static_cast<absl::StatusCode>(c.reply.code())));
  }
  std::string operator()(const ShowStatus&) const { return "show"; }
  std::string operator()(const Say& c) const { return absl::StrCat("say ", c.line); }
  std::string operator()(const Exit& c) const {
    return absl::StrCat("exit ", c.status, c.message.empty() ? "" : absl::StrCat(" ", c.message));
  }
};

// Feeds events to a core and returns its commands as text.
class AgentCoreTest : public testing::Test {
 protected:
  using Lines = std::vector<std::string>;

  AgentCoreTest() { core_.emplace(Config()); }

  static AgentConfig Config() {
    AgentConfig config;
    config.job = "j";
    config.incarnation = 9;
    config.server = "h:1";
    config.join.set_node("n1");
    config.join.set_held_port(500);
    config.join.mutable_spec()->mutable_timeouts()->mutable_stop_grace()->set_seconds(5);
    config.join.mutable_spec()->mutable_restart()->set_in_place(true);
    return config;
  }

  Lines Feed(const AgentEvent& event) {
    Lines lines;
    for (const AgentCommand& command : core_->Step(now_, event)) {
      lines.push_back(std::visit(Words{}, command));
      if (const auto* up = std::get_if<SendToServer>(&command)) {
        EXPECT_EQ(up->message.job(), "j");
        EXPECT_EQ(up->message.incarnation(), 9u);
      }
    }
    return lines;
  }
  Lines After(absl::Duration d) {
    now_ = now_ + d;
    return Feed(AgentTick{});
  }
  // Advances the time to the core's next deadline, which must be `d` away.
  Lines Deadline(absl::Duration d) {
    EXPECT_EQ(absl::FormatDuration(core_->NextDeadline() - now_), absl::FormatDuration(d));
    return After(d);
  }

  Lines Welcome(uint64_t server_id = 1) {
    server_id_ = server_id;
    v1::ServerMessage m;
    m.mutable_welcome()->set_server_id(server_id);
    *m.mutable_welcome()->mutable_version() = rpc::ThisVersion();
    m.mutable_welcome()->mutable_lease()->set_seconds(9);
    *m.mutable_welcome()->mutable_spec() = Config().join.spec();
    return Feed(ServerMessageReceived{m});
  }
  Lines Assign(uint64_t generation, uint32_t workers = 2) {
    v1::ServerMessage m;
    SetGeneration(&m, {server_id_, generation});
    m.mutable_assign()->set_local_world_size(workers);
    return Feed(ServerMessageReceived{m});
  }
  Lines Stop(uint64_t generation, int grace = 5) {
    return Stop(GenerationId{server_id_, generation}, grace);
  }
  // Stops a generation of another server, as named in the last Join.
  Lines StopOfServer(uint64_t server_id, uint64_t generation) {
    return Stop(GenerationId{server_id, generation}, 5);
  }
  Lines Stop(const GenerationId& generation, int grace) {
    v1::ServerMessage m;
    SetGeneration(&m, generation);
    m.mutable_stop()->set_reason("rank 3 failed");
    m.mutable_stop()->mutable_grace()->set_seconds(grace);
    return Feed(ServerMessageReceived{m});
  }
  // A stop order that lets workers rejoin.
  Lines StopToRejoin(uint64_t generation, const std::vector<uint32_t>& replace = {}) {
    v1::ServerMessage m;
    SetGeneration(&m, {server_id_, generation});
    m.mutable_stop()->set_reason("rank 3 failed");
    m.mutable_stop()->mutable_grace()->set_seconds(5);
    m.mutable_stop()->set_rejoin(true);
    for (const uint32_t local_rank : replace) m.mutable_stop()->add_replace(local_rank);
    return Feed(ServerMessageReceived{m});
  }
  Lines Waits(uint64_t generation, uint32_t local_rank) {
    return Feed(WorkerWaits{generation, local_rank, "a peer is gone"});
  }
  Lines Finished(v1::JobPhase outcome, int status) {
    v1::ServerMessage m;
    m.mutable_finished()->mutable_verdict()->set_outcome(outcome);
    m.mutable_finished()->mutable_verdict()->set_exit_status(status);
    return Feed(ServerMessageReceived{m});
  }
  Lines Rejected(absl::StatusCode code) {
    v1::ServerMessage m;
    m.mutable_rejected()->set_code(static_cast<int>(code));
    m.mutable_rejected()->set_message("other\ncommand");
    return Feed(ServerMessageReceived{m});
  }
  Lines Down(const absl::Status& status = absl::UnavailableError("connection refused")) {
    return Feed(LinkDown{status});
  }
  Lines Died(uint64_t generation, uint32_t local_rank, int code, int signal = 0) {
    v1::WorkerExit exit;
    exit.set_exit_code(code);
    exit.set_signal(signal);
    return Feed(WorkerDied{generation, local_rank, exit});
  }
  Lines Remains(uint64_t generation, uint32_t local_rank) {
    v1::WorkerRemains remains;
    remains.set_local_rank(local_rank);
    v1::RemainingProcess* process = remains.add_processes();
    process->set_pid(77);
    process->set_state("D");
    process->set_wchan("nfs_wait");
    return Feed(WorkerUnkillable{generation, remains});
  }
  Lines Asks(uint64_t client, uint64_t id, uint64_t generation, const std::string& job = "j") {
    v1::StoreRequest request;
    request.set_job(job);
    request.set_generation(generation);
    request.set_client(client);
    request.set_request_id(id);
    return Feed(StoreRequested{request});
  }
  Lines StoreSays(uint64_t client, uint64_t id) {
    v1::ServerMessage m;
    m.mutable_store()->set_client(client);
    m.mutable_store()->set_request_id(id);
    return Feed(ServerMessageReceived{m});
  }
  Lines Renewed(uint64_t number) {
    v1::ServerMessage m;
    m.mutable_renewed()->set_number(number);
    return Feed(ServerMessageReceived{m});
  }
  Lines Progress(uint32_t local_rank, uint64_t step, uint64_t generation = 1) {
    v1::Progress progress;
    progress.set_local_rank(local_rank);
    progress.set_step(step);
    return Feed(WorkerProgress{generation, progress, now_});
  }

  // The evidence that a probe found for these local ranks.
  Lines Found(const std::vector<int>& local_ranks, uint64_t generation = 1) {
    EvidenceFound found{generation, {}};
    for (const int local_rank : local_ranks) {
      found.ranks.emplace_back().set_local_rank(local_rank);
      found.ranks.back().set_summary("seen");
    }
    return Feed(found);
  }

  // Workers that report progress may from now on take `progress_seconds` for a step, and other
  // workers may be silent for `silence_seconds`; 0 means no limit.
  void LimitProgress(int64_t silence_seconds = 0, int64_t progress_seconds = 60) {
    v1::ServerMessage welcome;
    welcome.mutable_welcome()->set_server_id(1);
    *welcome.mutable_welcome()->mutable_version() = rpc::ThisVersion();
    welcome.mutable_welcome()->mutable_lease()->set_seconds(9000);
    v1::Timeouts* timeouts = welcome.mutable_welcome()->mutable_spec()->mutable_timeouts();
    if (progress_seconds > 0) timeouts->mutable_progress()->set_seconds(progress_seconds);
    if (silence_seconds > 0) timeouts->mutable_silence()->set_seconds(silence_seconds);
    Feed(ServerMessageReceived{welcome});
  }

  Lines AskStacks(uint64_t generation, uint64_t call) {
    v1::ServerMessage message;
    SetGeneration(&message, {server_id_, generation});
    message.mutable_ask_stacks()->set_call(call);
    return Feed(ServerMessageReceived{message});
  }
  Lines Inspect(uint64_t generation, bool briefly = false) {
    v1::ServerMessage message;
    SetGeneration(&message, {server_id_, generation});
    message.mutable_inspect()->set_briefly(briefly);
    return Feed(ServerMessageReceived{message});
  }

  // Connects and brings generation 1 up with two running workers.
  void Run() {
    ASSERT_THAT(Feed(LinkUp{}), testing::ElementsAre("up join port=500 gen=0"));
    ASSERT_THAT(Welcome(), testing::ElementsAre("begin"));
    ASSERT_THAT(Assign(1), testing::ElementsAre("start 1"));
    ASSERT_THAT(Feed(WorkerRuns{1, 0, 100}), testing::ElementsAre("up started 1/0"));
    ASSERT_THAT(Feed(WorkerRuns{1, 1, 101}), testing::ElementsAre("up started 1/1"));
  }

  uint64_t server_id_ = 1;
  MonoTime now_ = MonoTime::FromMicros(1000);
  std::optional<AgentCore> core_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_AGENT_CORE_RIG_H_
