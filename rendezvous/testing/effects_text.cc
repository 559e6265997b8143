#include "rendezvous/testing/effects_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/duration.h"
#include "base/text.h"

namespace cadre {
namespace {

std::string FailureText(const v1::Failure& failure) {
  return absl::StrCat(v1::FailureCause_Name(failure.cause()), " \"", failure.message(), "\"");
}

std::string VerdictText(const v1::Verdict& verdict) {
  std::string text =
      absl::StrCat(v1::JobPhase_Name(verdict.outcome()), " exit_status=", verdict.exit_status(),
                   " restarts=", verdict.restarts(), " generations=", verdict.generations(), " \"",
                   verdict.message(), "\"");
  if (verdict.has_root_cause()) {
    absl::StrAppend(&text, " root=", v1::FailureCause_Name(verdict.root_cause().cause()));
    for (const v1::RankEvidence& evidence : verdict.root_cause().evidence()) {
      if (evidence.rank() < 0) absl::StrAppend(&text, " differ=\"", evidence.summary(), "\"");
    }
  }
  if (verdict.collateral_size() > 0)
    absl::StrAppend(&text, " collateral=", verdict.collateral_size());
  if (verdict.earlier_size() > 0) absl::StrAppend(&text, " earlier=", verdict.earlier_size());
  return text;
}

std::string MembersText(const saved::Generation& formed) {
  std::vector<std::string> members;
  for (const saved::Member& member : formed.members()) {
    const uint32_t last = member.first_rank() + member.slots() - 1;
    members.push_back(last == member.first_rank()
                          ? absl::StrCat(member.node(), "=", last)
                          : absl::StrCat(member.node(), "=", member.first_rank(), "..", last));
  }
  return absl::StrJoin(members, " ");
}

std::string ClusterRecordText(const v1::Record& record) {
  switch (record.body_case()) {
    case v1::Record::kClusterNodeSet:
      return absl::StrCat("ClusterNodeSet ", record.cluster_node_set().node().name(),
                          record.cluster_node_set().node().drained() ? " drained" : "");
    case v1::Record::kClusterNodeGone:
      return absl::StrCat("ClusterNodeGone ", record.cluster_node_gone().node());
    case v1::Record::kPartPlaced:
      return absl::StrCat("PartPlaced ", record.part_placed().part().id(), ": ",
                          record.part_placed().part().job(), " on ",
                          record.part_placed().part().node());
    case v1::Record::kPartTakenBack:
      return absl::StrCat("PartTakenBack ", record.part_taken_back().id());
    case v1::Record::kPartEnded:
      return absl::StrCat("PartEnded ", record.part_ended().id());
    default:
      return "nothing";
  }
}

std::string RecordText(const v1::Record& record) {
  switch (record.body_case()) {
    case v1::Record::kJobCreated:
      return "JobCreated";
    case v1::Record::kNodeAdmitted:
      return absl::StrCat("NodeAdmitted ", record.node_admitted().node().name());
    case v1::Record::kNodeRemoved:
      return absl::StrCat(
          "NodeRemoved ", record.node_removed().node(), " ",
          v1::FailureCause_Name(record.node_removed().cause()),
          record.node_removed().how() == v1::NodeRemoved::REMAINS ? " REMAINS" : "");
    case v1::Record::kGenerationFormed: {
      const saved::Generation& formed = record.generation_formed().generation();
      return absl::StrCat("GenerationFormed ", formed.number(), ": ", MembersText(formed),
                          " master=", formed.master_addr(), ":", formed.master_port(),
                          " restart_count=", formed.restart_count());
    }
    case v1::Record::kWorkerRan:
      return absl::StrCat("WorkerRan rank ", record.worker_ran().rank(),
                          record.worker_ran().rejoined() ? " (rejoined)" : "");
    case v1::Record::kJobUpdated:
      return absl::StrCat("JobUpdated ", record.job_updated().ShortDebugString());
    case v1::Record::kNodeImported:
      return absl::StrCat("NodeImported ", record.node_imported().node());
    case v1::Record::kWorkerEnded: {
      const v1::WorkerEnded& ended = record.worker_ended();
      if (!ended.has_failure())
        return absl::StrCat("WorkerEnded rank ", ended.rank(), " succeeded");
      return absl::StrCat("WorkerEnded rank ", ended.rank(), " ", FailureText(ended.failure()),
                          ended.failure().collateral() ? " (collateral)" : "");
    }
    case v1::Record::kStopOrdered:
      return absl::StrCat("StopOrdered ", record.stop_ordered().has_root_cause()
                                              ? FailureText(record.stop_ordered().root_cause())
                                              : record.stop_ordered().reason());
    case v1::Record::kNodeCleared:
      return absl::StrCat("NodeCleared ", record.node_cleared().node());
    case v1::Record::kGatheringBegan: {
      const v1::GatheringBegan& began = record.gathering_began();
      const absl::Duration delay = absl::Microseconds(began.not_before_us() - began.at_us());
      return absl::StrCat(
          "GatheringBegan restart_count=", began.restart_count(),
          began.counted() ? " counted" : " not counted", began.got_on() ? " got on" : "",
          delay > absl::ZeroDuration() ? absl::StrCat(" not before ", ShortDuration(delay)) : "");
    }
    case v1::Record::kJobEnded:
      return absl::StrCat("JobEnded ", VerdictText(record.job_ended().verdict()));
    case v1::Record::kKeyWritten:
      return absl::StrCat("KeyWritten ", record.key_written().key(), "=",
                          record.key_written().value());
    case v1::Record::kKeyErased:
      return absl::StrCat("KeyErased ", record.key_erased().key());
    case v1::Record::kCommunicatorIdPublished:
      return absl::StrCat("CommunicatorIdPublished ",
                          record.communicator_id_published().communicator());
    case v1::Record::kStoreAnswered:
      return absl::StrCat("StoreAnswered ", record.answers_size());
    case v1::Record::kSnapshot:
      return absl::StrCat("Snapshot ", record.job());
    default:
      return ClusterRecordText(record);
  }
}

std::string ReplyText(const v1::StoreReply& reply) {
  std::string text =
      absl::StrCat("StoreReply ", reply.request_id(), " ",
                   absl::StatusCodeToString(static_cast<absl::StatusCode>(reply.code())));
  if (!reply.message().empty()) absl::StrAppend(&text, " \"", reply.message(), "\"");
  if (!reply.value().empty()) absl::StrAppend(&text, " value=", reply.value());
  if (reply.number() != 0) absl::StrAppend(&text, " number=", reply.number());
  return text;
}

std::string StatusText(const v1::JobStatus& status) {
  std::string text =
      absl::StrCat("Status ", v1::JobPhase_Name(status.phase()), " nodes=", status.nodes_in());
  if (status.world_size() > 0) {
    absl::StrAppend(&text, " workers=", status.workers_running(), "/", status.world_size());
  }
  if (status.has_progress()) {
    const v1::JobProgress& progress = status.progress();
    absl::StrAppend(&text, " step=", progress.step(), " slowest=", progress.slowest_rank(),
                    " speed=", progress.samples_per_second(), " loss=", progress.loss());
  }
  if (!status.waiting_for().empty()) {
    absl::StrAppend(&text, " waiting for ", status.waiting_for());
  }
  if (!status.stall().empty()) absl::StrAppend(&text, " stall \"", status.stall(), "\"");
  if (status.checkpoint_wanted()) text += " checkpoint wanted";
  return text;
}

std::string MessageText(const v1::ServerMessage& message) {
  const std::string generation = absl::StrCat(" generation=", message.generation());
  switch (message.body_case()) {
    case v1::ServerMessage::kWelcome:
      return absl::StrCat("Welcome", generation);
    case v1::ServerMessage::kRejected:
      return absl::StrCat(
          "Rejected ",
          absl::StatusCodeToString(static_cast<absl::StatusCode>(message.rejected().code())), " \"",
          message.rejected().message(), "\"");
    case v1::ServerMessage::kAssign: {
      const v1::Assign& assign = message.assign();
      return absl::StrCat("Assign", generation, " node_rank=", assign.node_rank(), "/",
                          assign.nodes(), " ranks=", assign.first_rank(), "+",
                          assign.local_world_size(), "/", assign.world_size(),
                          assign.versions_differ().empty() ? "" : " ", assign.versions_differ());
    }
    case v1::ServerMessage::kStop:
      return absl::StrCat(
          "Stop", generation, " grace=", ShortDuration(FromProto(message.stop().grace())),
          message.stop().rejoin() ? " rejoin" : "",
          message.stop().replace_size() > 0 ? absl::StrCat(" replace=", message.stop().replace(0))
                                            : "",
          " \"", message.stop().reason(), "\"");
    case v1::ServerMessage::kFinished:
      return absl::StrCat("Finished ", v1::JobPhase_Name(message.finished().verdict().outcome()),
                          " exit_status=", message.finished().verdict().exit_status());
    case v1::ServerMessage::kStatus:
      return StatusText(message.status());
    case v1::ServerMessage::kStore:
      return ReplyText(message.store());
    case v1::ServerMessage::kRenewed:
      return absl::StrCat("Renewed ", message.renewed().number());
    case v1::ServerMessage::kInspect:
      return message.inspect().briefly() ? "Inspect briefly" : "Inspect";
    case v1::ServerMessage::kAskStacks:
      return "AskStacks";
    case v1::ServerMessage::kSignal:
      return absl::StrCat("Signal ", message.signal().signal());
    case v1::ServerMessage::kAgent:
      return "AgentOrder";
    case v1::ServerMessage::BODY_NOT_SET:
      break;
  }
  return "nothing";
}

}  // namespace

std::vector<std::string> LinesOf(const Effects& effects,
                                 const std::function<std::string(StreamId)>& node_of) {
  std::vector<std::string> lines;
  for (const v1::Record& record : effects.append) {
    lines.push_back(absl::StrCat("record ", RecordText(record)));
  }
  for (size_t i = 0; i < effects.send.size();) {
    const std::string text = MessageText(effects.send[i].message);
    std::vector<std::string> nodes;
    for (; i < effects.send.size() && MessageText(effects.send[i].message) == text; ++i) {
      nodes.push_back(node_of(effects.send[i].stream));
    }
    lines.push_back(absl::StrCat(absl::StrJoin(nodes, ", "), ": ", text));
  }
  for (const ReplyToCall& reply : effects.reply) {
    lines.push_back(absl::StrCat("call ", reply.call.value, ": ", ReplyText(reply.reply)));
  }
  for (const CloseStream& close : effects.close) {
    lines.push_back(absl::StrCat(node_of(close.stream), ": closed, ", close.status.ToString()));
  }
  for (const Note& note : effects.notes) lines.push_back(absl::StrCat("note ", note.text));
  return lines;
}

}  // namespace cadre
