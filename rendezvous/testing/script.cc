#include "rendezvous/testing/script.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "rendezvous/core/core.h"
#include "rendezvous/testing/effects_text.h"
#include "rendezvous/testing/script_line.h"
#include "rendezvous/testing/test_messages.h"

namespace cadre {
namespace {

struct ScriptNode {
  Sender self;
  uint32_t slots = 1;
  StreamId stream;
  bool silent = false;
};

class Player {
 public:
  absl::StatusOr<std::string> Play(absl::string_view script) {
    int number = 0;
    for (absl::string_view text : absl::StrSplit(absl::StripSuffix(script, "\n"), '\n')) {
      ++number;
      if (absl::StartsWith(text, "    ")) continue;  // what was expected
      absl::StrAppend(&output_, text, "\n");
      if (!absl::ConsumePrefix(&text, "> ")) continue;
      absl::Status played = PlayLine(text);
      if (played.ok()) played = invariants_;
      if (!played.ok()) {
        return absl::Status(played.code(), absl::StrCat("line ", number, ": ", played.message()));
      }
    }
    return output_;
  }

 private:
  absl::Status PlayLine(absl::string_view text) {
    ScriptLine line(text);
    const std::string verb = line.Word(0);
    if (!Setup(verb, &line) && !NodeEvent(verb, &line) && !OtherEvent(verb, &line)) {
      line.SetError("unknown event: " + verb);
    }
    return line.Check();
  }

  bool Setup(const std::string& verb, ScriptLine* line) {
    if (verb == "lease") return config_.lease = line->ToDuration(line->Word(1)), true;
    if (verb == "grace") return config_.reconnect_grace = line->ToDuration(line->Word(1)), true;
    if (verb != "spec") return false;
    const auto set = [&](const char* key, google::protobuf::Duration* field) {
      if (line->Has(key)) *field = ToProto(line->ToDuration(line->Text(key)));
    };
    const std::vector<std::string> nodes = absl::StrSplit(line->Text("nodes", "1"), "..");
    spec_ = SpecOf(line->Text("job", "train"), line->ToNumber(nodes.front()),
                   line->ToNumber(nodes.back()), line->Number("restarts", 0));
    if (line->Has("command")) spec_.set_command(0, line->Text("command"));
    set("settle", spec_.mutable_rendezvous()->mutable_settle());
    set("join", spec_.mutable_rendezvous()->mutable_join_timeout());
    set("start", spec_.mutable_timeouts()->mutable_start());
    set("stop", spec_.mutable_timeouts()->mutable_stop_grace());
    set("total", spec_.mutable_timeouts()->mutable_total());
    set("window", spec_.mutable_restart()->mutable_window());
    if (line->Has("backoff")) {
      const std::vector<std::string> ends = absl::StrSplit(line->Text("backoff"), "..");
      *spec_.mutable_restart()->mutable_backoff_min() = ToProto(line->ToDuration(ends.front()));
      *spec_.mutable_restart()->mutable_backoff_max() = ToProto(line->ToDuration(ends.back()));
    }
    spec_.mutable_restart()->set_in_place(line->Text("in_place") == "yes");
    spec_.mutable_elastic()->set_unit(line->Number("unit", 0));
    const std::string scale_up = line->Text("scale_up");
    if (scale_up == "immediately")
      spec_.mutable_elastic()->set_scale_up(v1::ElasticPolicy::IMMEDIATELY);
    if (scale_up == "never") spec_.mutable_elastic()->set_scale_up(v1::ElasticPolicy::NEVER);
    for (absl::string_view name : absl::StrSplit(line->Text("on"), ',', absl::SkipEmpty())) {
      v1::FailureCause cause = v1::CRASH;
      if (!v1::FailureCause_Parse(std::string(name), &cause)) line->SetError("no such cause");
      spec_.mutable_restart()->add_on(cause);
    }
    return true;
  }

  bool NodeEvent(const std::string& verb, ScriptLine* line) {
    static const std::set<std::string> kVerbs = {
        "join", "up",    "exit", "done", "stopped", "leave", "close",   "cancel", "silence",
        "wake", "store", "at",   "hang", "where",   "still", "gave_up", "remains"};
    if (kVerbs.count(verb) == 0) return false;
    ScriptNode& node = nodes_[line->Word(1)];
    if (verb == "join") return Join(line, &node), true;
    const Sender& self = node.self;
    if (verb == "silence" || verb == "wake") {
      node.silent = verb == "silence";
    } else if (verb == "close") {
      Step(StreamClosed{node.stream});
    } else if (verb == "up" || verb == "done") {
      const bool one = verb == "up" && line->HasWord(2);
      const uint32_t first = one ? line->Number(2) : 0;
      const bool kept = line->Text("kept") == "yes";
      for (uint32_t rank = first; rank < (one ? first + 1 : node.slots); ++rank) {
        v1::NodeMessage started = StartedFrom(self, rank);
        started.mutable_worker_started()->set_rejoined(kept);
        Send(node, verb == "up" ? std::move(started) : ExitedFrom(self, rank, 0, 0));
      }
    } else if (verb == "gave_up") {
      v1::NodeMessage gave_up = MessageFrom(self);
      gave_up.mutable_worker_gave_up()->set_local_rank(line->Number(2));
      gave_up.mutable_worker_gave_up()->set_reason(line->Word(3));
      Send(node, gave_up);
    } else if (verb == "remains") {
      const int pid = static_cast<int>(line->Number("pid", 7));
      Send(node, UnkillableFrom(self, line->Number(2), pid, line->Text("in")));
    } else if (verb == "exit") {
      Exit(line, node);
    } else if (verb == "at") {
      Progress(line, node);
    } else if (verb == "hang" || verb == "where" || verb == "still") {
      Evidence(line, node, verb == "hang", verb == "still");
    } else if (verb == "stopped") {
      v1::NodeMessage stopped = StoppedFrom(self);
      stopped.mutable_node_stopped()->set_held_port(line->Number("port", 0));
      Send(node, stopped);
    } else if (verb == "leave") {
      v1::NodeMessage leave = MessageFrom(self);
      if (line->HasWord(2) && line->Word(2) == "PREEMPTED")
        leave.mutable_leave()->set_cause(v1::PREEMPTED);
      leave.mutable_leave();
      Send(node, leave);
    } else if (verb == "cancel") {
      v1::NodeMessage cancel = MessageFrom(self);
      if (line->HasWord(2) && line->Word(2) == "PREEMPTED") {
        cancel.mutable_cancel()->set_cause(v1::PREEMPTED);
      } else {
        cancel.mutable_cancel()->set_signal(line->Number(2));
      }
      cancel.mutable_cancel()->set_at_once(line->HasWord(3) && line->Word(3) == "AT_ONCE");
      Send(node, cancel);
    } else {
      v1::NodeMessage store = MessageFrom(self);
      *store.mutable_store() = Request(line, 2, self.generation);
      Send(node, store);
    }
    return true;
  }

  void Join(ScriptLine* line, ScriptNode* node) {
    node->self.job = spec_.name();
    node->self.node = line->Word(1);
    const uint64_t incarnation = line->Number("incarnation", node->self.incarnation);
    if (incarnation != node->self.incarnation) node->self.generation = 0;
    node->self.incarnation = incarnation;
    node->slots = line->Number("slots", node->slots);
    node->stream = StreamId{next_stream_++};
    streams_[node->stream] = node->self.node;
    v1::NodeMessage message = JoinFrom(node->self, spec_, node->slots);
    v1::Join* join = message.mutable_join();
    message.set_generation(0);
    join->set_held_port(line->Number("port", 0));
    if (line->Has("python")) join->mutable_versions()->set_python(line->Text("python"));
    if (line->Has("torch")) join->mutable_versions()->set_torch(line->Text("torch"));
    if (line->Has("minor")) join->mutable_version()->set_minor(line->Number("minor", 0));
    if (line->Has("minor")) join->mutable_version()->clear_program();
    join->set_wanted_node_rank(line->Number("rank", -1));
    if (line->Has("adopt")) {
      *join->mutable_adopt_timeout() = ToProto(line->ToDuration(line->Text("adopt")));
    }
    for (absl::string_view name : absl::StrSplit(line->Text("expect"), ',', absl::SkipEmpty())) {
      join->add_expected_nodes(std::string(name));
    }
    Send(*node, message);
  }

  void Exit(ScriptLine* line, const ScriptNode& node) {
    v1::NodeMessage message =
        ExitedFrom(node.self, line->Number(2), line->Number("code", 0), line->Number("signal", 0));
    v1::WorkerExited* exited = message.mutable_worker_exited();
    exited->mutable_exit()->set_exec_errno(line->Number("errno", 0));
    if (line->Has("errno")) exited->set_cause(v1::EXEC_FAILED);
    if (line->Has("step")) exited->mutable_exit()->set_exec_step(line->Text("step"));
    exited->set_late(line->Text("late") == "yes");
    if (line->Text("lost_peer") == "yes") {
      exited->mutable_exit()->set_last_lines(
          "  File \"train.py\", line 3, in f\nRuntimeError: gloo: Connection reset by peer\n");
    }
    if (line->Has("error_file")) {
      exited->mutable_exit()->set_error_json(absl::StrCat(
          "{\"message\": {\"extraInfo\": {\"timestamp\": \"", line->Text("error_file"), "\"}}}"));
    }
    if (line->Text("in_vain") == "yes") {
      exited->mutable_exit()->set_last_lines(
          "  File \"train.py\", line 3, in f\nRuntimeError: gloo: Timed out waiting 5000ms\n");
    }
    v1::FailureCause cause = v1::CRASH;
    if (line->Has("cause") && v1::FailureCause_Parse(line->Text("cause"), &cause)) {
      exited->set_cause(cause);
    }
    Send(node, message);
  }

  void Progress(ScriptLine* line, const ScriptNode& node) {
    v1::NodeMessage message = MessageFrom(node.self);
    v1::NodeProgress* progress = message.mutable_progress();
    progress->set_workers(node.slots);
    progress->set_min_step(line->Number(2));
    progress->set_max_step(line->Number("max", progress->min_step()));
    progress->set_slowest_local_rank(line->Number("slowest", 0));
    progress->set_samples_per_second(line->Number("speed", 0));
    progress->set_loss(line->Number("loss", 0));
    progress->set_of_generation(line->Text("anew") == "yes");
    Send(node, message);
  }

  // One word per local rank, in their order: its state, phase and step, as in S:waiting:5, or
  // S:absent. The first rank is overdue if the node reports a hang.
  void Evidence(ScriptLine* line, const ScriptNode& node, bool hang, bool stall) {
    v1::NodeMessage message = MessageFrom(node.self);
    message.mutable_evidence()->set_hang(hang);
    message.mutable_evidence()->set_stall(stall);
    for (uint32_t rank = 0; rank < node.slots; ++rank) {
      const std::vector<std::string> parts = absl::StrSplit(line->Word(2 + rank), ':');
      v1::RankEvidence* evidence = message.mutable_evidence()->add_ranks();
      evidence->set_local_rank(rank);
      evidence->set_state(parts[0]);
      evidence->set_overdue(hang && rank == 0);
      evidence->set_silent_seconds(2);
      evidence->set_absent(parts.size() == 2 && parts[1] == "absent");
      if (parts.size() == 2 && parts[1] == "own") {
        evidence->set_python(v1::IN_OWN_CODE);
        evidence->set_python_what("time.sleep(20)");
        evidence->set_python_where("train.py:9 in clean_up");
      }
      if (parts.size() == 2 && parts[1] == "in") {
        evidence->set_python(v1::IN_COLLECTIVE);
        evidence->set_python_what("all_reduce");
        evidence->set_python_where("train.py:3 in step");
      }
      if (parts.size() != 3) continue;
      v1::RankPhase phase = v1::RANK_PHASE_UNSPECIFIED;
      if (!v1::RankPhase_Parse(absl::AsciiStrToUpper(parts[1]), &phase)) {
        line->SetError("no such phase");
      }
      evidence->set_phase(phase);
      evidence->set_step(line->ToNumber(parts[2]));
    }
    Send(node, message);
  }

  // Parses the words from `at` on: RANK OPERATION ARGUMENTS.
  v1::StoreRequest Request(ScriptLine* line, size_t at, uint64_t generation) {
    v1::StoreRequest request;
    request.set_job(spec_.name());
    request.set_generation(line->Number("generation", generation));
    request.set_rank(line->Number(at));
    request.set_client(100 + request.rank());
    request.set_request_id(line->Number("id", next_request_++));
    request.set_wait_ms(absl::ToInt64Milliseconds(line->ToDuration(line->Text("wait", "0s"))));
    const std::string operation = line->Word(at + 1), key = line->Word(at + 2);
    if (operation == "set") {
      request.mutable_set()->set_key(key);
      request.mutable_set()->set_value(line->Word(at + 3));
    } else if (operation == "get") {
      request.mutable_get()->set_key(key);
    } else if (operation == "add") {
      request.mutable_add()->set_key(key);
      request.mutable_add()->set_delta(line->Number(at + 3));
    } else if (operation == "cas") {
      request.mutable_compare_and_set()->set_key(key);
      request.mutable_compare_and_set()->set_expected(line->Word(at + 3));
      request.mutable_compare_and_set()->set_desired(line->Word(at + 4));
    } else if (operation == "delete") {
      request.mutable_delete_()->set_key(key);
    } else if (operation == "barrier") {
      request.mutable_barrier()->set_name(key);
      request.mutable_barrier()->set_size(line->Number("size", 0));
    } else if (operation == "publish") {
      request.mutable_publish_id()->set_communicator(key);
      request.mutable_publish_id()->set_id(line->Word(at + 3));
    } else if (operation == "get_id") {
      request.mutable_get_id()->set_communicator(key);
    } else {
      line->SetError("no such operation: " + operation);
    }
    return request;
  }

  bool OtherEvent(const std::string& verb, ScriptLine* line) {
    if (verb == "wait") return Wait(line->ToDuration(line->Word(1))), true;
    if (verb == "stall") return now_ = now_ + line->ToDuration(line->Word(1)), true;
    if (verb == "explain") {
      const absl::StatusOr<std::string> text = core().Explain(now_, spec_.name());
      return Write(text.ok() ? *text : text.status().ToString()), true;
    }
    if (verb == "disk") return Step(CanSave{line->Word(1) == "works"}), true;
    if (verb == "user_cancel") return Step(JobCancelled{spec_.name(), line->Word(1), 0}), true;
    if (verb == "call") {
      const CallId call{static_cast<uint64_t>(line->Number(1))};
      return Step(StoreCalled{call, Request(line, 2, generation_)}), true;
    }
    if (verb == "drop") {
      return Step(StoreCallDropped{CallId{static_cast<uint64_t>(line->Number(1))}}), true;
    }
    if (verb != "restart_server") return false;
    core_ = std::make_unique<Core>(config_);
    for (const v1::Record& record : records_) core_->Apply(record);
    streams_.clear();
    return true;
  }

  void Wait(absl::Duration duration) {
    const MonoTime end = now_ + duration;
    while (now_ < end) {
      // Agents renew after a third of the lease.
      const MonoTime next = std::min({end, core().NextDeadline(), renewed_ + config_.lease / 3});
      now_ = std::max(next, now_);
      if (now_ >= renewed_ + config_.lease / 3) {
        renewed_ = now_;
        for (const auto& [name, node] : nodes_) {
          if (node.silent || streams_.count(node.stream) == 0) continue;
          v1::NodeMessage renew = MessageFrom(node.self);
          renew.mutable_renew();
          Send(node, renew);
        }
      }
      if (core().NextDeadline() <= now_) Step(Tick{});
    }
  }

  Core& core() {
    if (core_ == nullptr) core_ = std::make_unique<Core>(config_);
    return *core_;
  }

  void Send(const ScriptNode& node, v1::NodeMessage message) {
    Step(NodeMessageReceived{node.stream, std::move(message)});
  }

  void Write(const std::string& text) { absl::StrAppend(&output_, "    ", text, "\n"); }

  void Step(const Event& event) {
    const Effects effects = core().Step(now_, event);
    std::vector<std::string> lines = LinesOf(effects, [&](StreamId stream) {
      const auto found = streams_.find(stream);
      return found == streams_.end() ? "nobody" : found->second;
    });
    if (!lines.empty() && now_ != written_at_) {
      Write(absl::StrCat("[", absl::FormatDuration(now_ - MonoTime()), "]"));
      written_at_ = now_;
    }
    for (const std::string& line : lines) Write(line);
    if (const auto* closed = std::get_if<StreamClosed>(&event)) streams_.erase(closed->stream);
    for (const CloseStream& close : effects.close) streams_.erase(close.stream);
    for (const SendToStream& send : effects.send) {
      const auto found = streams_.find(send.stream);
      if (!send.message.has_assign() || found == streams_.end()) continue;
      generation_ = nodes_[found->second].self.generation = send.message.generation();
    }
    records_.insert(records_.end(), effects.append.begin(), effects.append.end());
    invariants_.Update(core().CheckInvariants());
    Core replayed(config_);
    for (const v1::Record& record : records_) replayed.Apply(record);
    if (replayed.DebugString() != core().DebugString()) {
      invariants_.Update(absl::InternalError("replay gives another state"));
    }
  }

  CoreConfig config_;
  std::unique_ptr<Core> core_;
  v1::JobSpec spec_ = SpecOf("train", 1, 1, 0);
  MonoTime now_;
  MonoTime renewed_;
  MonoTime written_at_ = MonoTime::Never();
  std::map<std::string, ScriptNode> nodes_;
  std::map<StreamId, std::string> streams_;
  uint64_t next_stream_ = 1;
  uint64_t next_request_ = 1;
  uint64_t generation_ = 0;
  std::vector<v1::Record> records_;
  std::string output_;
  absl::Status invariants_;
};

}  // namespace

absl::StatusOr<std::string> PlayScript(absl::string_view script) { return Player().Play(script); }

}  // namespace cadre
