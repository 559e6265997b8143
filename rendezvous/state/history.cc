#include "rendezvous/state/history.h"

#include <string>

#include "rendezvous/state/limits.h"

namespace cadre::state {
namespace {

// Bytes of the last lines.
constexpr size_t kOtherFailureLines = 512;

v1::Failure WithoutBulk(v1::Failure failure) {
  if (failure.evidence_size() > 1) {
    failure.mutable_evidence()->DeleteSubrange(1, failure.evidence_size() - 1);
  }
  if (!failure.has_exit()) return failure;
  failure.mutable_exit()->clear_error_json();
  std::string* lines = failure.mutable_exit()->mutable_last_lines();
  if (lines->size() > kOtherFailureLines) {
    // The end says more than the beginning; it starts at a whole character.
    size_t from = lines->size() - kOtherFailureLines;
    while (from < lines->size() && (static_cast<unsigned char>((*lines)[from]) & 0xc0) == 0x80) {
      ++from;
    }
    lines->erase(0, from);
  }
  return failure;
}

}  // namespace

void AddEarlier(const v1::Failure& failure, Job* job) {
  if (job->saved.earlier_size() < kMaxEarlier) *job->saved.add_earlier() = WithoutBulk(failure);
}

void AddCollateral(const v1::Failure& failure, saved::GenerationStop* stop) {
  if (stop->collateral_size() >= kMaxCollateral) return;
  v1::Failure* added = stop->add_collateral();
  *added = WithoutBulk(failure);
  added->set_collateral(true);
}

v1::GenerationTimeline* LastTimeline(Job* job) {
  auto* generations = job->saved.mutable_timeline()->mutable_generations();
  return generations->empty() ? nullptr : generations->Mutable(generations->size() - 1);
}

int64_t SinceCreated(const Job& job, int64_t at_us) {
  return at_us - job.saved.times().created_us();
}

}  // namespace cadre::state
