// Methods of AgentCore::Impl: workers are looked at because one of them makes no progress, here or
// on another node.
#include <utility>

#include "agent/core/impl.h"

namespace cadre::agent {

void AgentCore::Impl::OnInspect(const GenerationId& inspected, bool briefly) {
  if (!generation.running() || inspected != generation.id() || departure.exit) return;
  // What was found of a hang here is on its way already.
  if (hangs.hang()) return;
  hangs.Inspect();
  if (!hangs.looking()) Look(briefly);
}

void AgentCore::Impl::Look(bool briefly) {
  hangs.Begin(now, briefly);
  out.Add(CollectEvidence{generation.id().number,
                          Overdue(generation.workers(), session.spec().timeouts(), now), briefly});
}

void AgentCore::Impl::LookIfDue() {
  if (!hangs.idle()) return;
  const Workers& workers = generation.workers();
  if (FirstHang(workers, session.spec().timeouts()) <= now) return Look(/*briefly=*/false);
  const MonoTime standstill = FirstStandstill(workers);
  if (hangs.LooksAt(standstill) > now) return;
  hangs.Looks(standstill, now);
  Look(/*briefly=*/true);
}

void AgentCore::Impl::OnEvidenceFound(const EvidenceFound& event) {
  if (event.generation == generation.id().number && hangs.Found(event.ranks, now)) ReportFindings();
}

void AgentCore::Impl::ReportFindings() {
  std::vector<v1::RankEvidence> findings = hangs.TakeFindings();
  if (!generation.running()) return;
  v1::NodeEvidence evidence =
      EvidenceOf(std::move(findings), generation.workers(), session.spec(), now);
  const bool stands_still = FirstStandstill(generation.workers()) <= now;
  if (!hangs.IsNews(stands_still, &evidence) || !session.welcomed()) return;
  v1::NodeMessage message;
  *message.mutable_evidence() = std::move(evidence);
  out.Up(std::move(message), generation.id());
}

void AgentCore::Impl::OnEvidenceDone(uint64_t number) {
  if (number == generation.id().number && hangs.End()) generation.LookEnded(now);
}

}  // namespace cadre::agent
