// What FullyShardedUnits does while a model's forward and backward passes run.
#include <algorithm>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "cadre/status_macros.h"
#include "cadre/torch/fully_sharded/fully_sharded_unit.h"
#include "cadre/torch/fully_sharded/fully_sharded_units.h"
#include "cadre/torch/guarded.h"
#include "cadre/torch/recomputation.h"
#include "cadre/torch/tensors.h"
#include "torch/utils.h"

namespace cadre::nn {
namespace {

ParameterWatch::Names NamesIn(const std::vector<FlatParameter*>& flats) {
  ParameterWatch::Names names;
  for (const FlatParameter* const flat : flats) {
    for (const FlatMember& member : flat->members()) {
      if (member.count > 0) names.emplace(member.tensor.unsafeGetTensorImpl(), member.name);
    }
  }
  return names;
}

}  // namespace

void FullyShardedUnits::BeginPass() {
  // Values may be older than the optimizer's last step: of a forward pass without a backward pass.
  for (const auto& unit : units_) {
    Release(*unit);
    // Of a backward pass that ended with an exception.
    unit->in_backward = false;
  }
  end_queued_ = false;
  last_ = nullptr;
  order_.Begin();
  pass_synchronized_ = synchronize_;
  (void)Fail(links_.CheckHealth());
  (void)Fail(EndWatch());
  // In the first pass and its loss alone, since it takes time; models that use a parameter outside
  // its unit tend to do so from the beginning.
  if (!std::exchange(watched_, true)) watch_ = std::make_unique<ParameterWatch>(NamesIn(flats()));
  if (options_.broadcast_buffers && pass_synchronized_ && module_->is_training() &&
      torch::GradMode::is_enabled() && failure_.ok()) {
    (void)Fail(links_.FromFirstRank([&](Communicator& ranks, DeviceLinks* links) {
      return BroadcastBuffers(ranks, *module_, options_.timeout, links);
    }));
  }
}

Status FullyShardedUnits::EndWatch() {
  const std::unique_ptr<ParameterWatch> watch = std::exchange(watch_, nullptr);
  if (watch == nullptr || watch->found().empty()) return OkStatus();
  return InvalidArgumentError(Mine() + "parameter '" + watch->found() +
                              "' was used outside its unit, where it is empty: call the unit by "
                              "CallUnit(), or do not name it as one");
}

void FullyShardedUnits::BeforeForward(Unit& unit) {
  (void)Fail(Guarded("forward pass of a sharded model", [&] {
    if (unit.root() && unit.calls == 0) BeginPass();
    ++unit.calls;
    if (IsRecomputing()) {
      // A part of the backward pass, whose order is another.
      if (torch::GradMode::is_enabled()) BeforeBackward(unit);
      Require(unit);
      return OkStatus();
    }
    if (last_ != nullptr && last_ != &unit) last_->next_forward = &unit;
    last_ = &unit;
    order_.Add(unit.index);
    Require(unit);
    Prefetch(unit.next_forward);
    return OkStatus();
  }));
}

void FullyShardedUnits::AfterForward(Unit& unit) {
  (void)Fail(Guarded("forward pass of a sharded model", [&]() -> Status {
    if (--unit.calls > 0) return OkStatus();
    const bool with_backward = torch::GradMode::is_enabled();
    if (IsRecomputing()) {
      // Its own backward pass follows, or that of a part that will be recomputed again.
      if (!unit.in_backward) Release(unit);
      return OkStatus();
    }
    // The one that ran last and that the backward pass begins with stays for it.
    const bool needed_next = unit.next_forward == nullptr && units_.front()->next_backward == &unit;
    const bool stays = unit.root() || needed_next || !options_.reshard_after_forward;
    if (!with_backward || !stays) Release(unit);
    if (!unit.root()) return OkStatus();
    last_ = nullptr;
    // The loss may use a parameter, too.
    const bool found = watch_ != nullptr && !watch_->found().empty();
    if (found || !with_backward) CADRE_RETURN_IF_ERROR(EndWatch());
    for (const auto& other : units_) {
      // What was gathered for nothing, since the pass went another way.
      if (!with_backward || other->state == Unit::State::kOnItsWay) Release(*other);
    }
    // What the module threw comes before what follows from that.
    if (std::uncaught_exceptions() > 0 || !failure_.ok()) return OkStatus();
    const Status same = order_.Check(route());
    if (same.code() != StatusCode::kInvalidArgument) return same;
    return InvalidArgumentError(Mine() + same.message());
  }));
}

torch::Tensor FullyShardedUnits::Enter(Unit& unit, const torch::Tensor& input) {
  // The root is complete when the backward pass is.
  if (unit.root() || !torch::GradMode::is_enabled() || !input.defined() || !input.requires_grad()) {
    return input;
  }
  // A node of autograd's of its own: it runs after all of the unit's, which are younger, and before
  // the one that the input comes from.
  const torch::Tensor entered = input.view_as(input);
  const auto awaited = std::make_shared<AwaitedInput>(unit.inputs);
  entered.register_hook([this, &unit, awaited](const torch::Tensor&) {
    awaited->Came();
    AfterBackward(unit);
  });
  return entered;
}

void FullyShardedUnits::Leave(Unit& unit, const torch::Tensor& output) {
  if (!output.defined() || !output.requires_grad()) return;
  output.register_hook([this, &unit](const torch::Tensor&) { BeforeBackward(unit); });
}

void FullyShardedUnits::BeforeBackward(Unit& unit) {
  (void)Fail(Guarded("backward pass of a sharded model", [&] {
    if (!std::exchange(end_queued_, true)) {
      AtBackwardEnd([this] { OnBackwardEnd(); });
    }
    if (!std::exchange(unit.in_backward, true)) {
      if (last_ != nullptr && last_ != &unit) last_->next_backward = &unit;
      last_ = &unit;
    }
    Require(unit);
    Prefetch(unit.next_backward);
    return OkStatus();
  }));
}

void FullyShardedUnits::AfterBackward(Unit& unit) {
  (void)Fail(Guarded("backward pass of a sharded model", [&] {
    if (*unit.inputs > 0 || !unit.in_backward) return OkStatus();
    unit.in_backward = false;
    Reduce(unit);
    Release(unit);
    return OkStatus();
  }));
}

// What is complete only now: the root, units whose inputs need no gradient, and what came late.
void FullyShardedUnits::OnBackwardEnd() {
  end_queued_ = false;
  backward_ended_ = true;
  (void)Fail(Guarded("end of the backward pass of a sharded model", [&] {
    for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) {
      if (std::exchange((*unit)->in_backward, false) || (*unit)->has_gradients()) Reduce(**unit);
      Release(**unit);
      (*unit)->inputs = std::make_shared<std::atomic<int>>(0);
    }
    last_ = nullptr;
    if (pass_synchronized_) averaged_ = true;
    return OkStatus();
  }));
}

void FullyShardedUnits::Start(Unit& unit) {
  unit.state = Unit::State::kOnItsWay;
  gathered_bytes_ += unit.gathered_bytes();
  most_gathered_bytes_ = std::max(most_gathered_bytes_, gathered_bytes_);
  for (const auto& flat : unit.flats) {
    if (failure_.ok()) (void)Fail(flat->StartGather());
  }
}

void FullyShardedUnits::Require(Unit& unit) {
  if (unit.state == Unit::State::kThere) return;
  if (unit.state == Unit::State::kSharded) Start(unit);
  unit.state = Unit::State::kThere;
  for (const auto& flat : unit.flats) {
    (void)Fail(flat->FinishGather());
    if (!failure_.ok()) flat->GatherNothing();
    flat->Show();
  }
}

void FullyShardedUnits::Prefetch(Unit* unit) {
  if (unit == nullptr || unit->state != Unit::State::kSharded) return;
  const size_t room =
      options_.most_gathered_bytes - std::min(options_.most_gathered_bytes, gathered_bytes_);
  if (unit->gathered_bytes() <= room) Start(*unit);
}

void FullyShardedUnits::Release(Unit& unit) {
  if (unit.state == Unit::State::kSharded) return;
  unit.state = Unit::State::kSharded;
  gathered_bytes_ -= unit.gathered_bytes();
  for (const auto& flat : unit.flats) (void)Fail(flat->Free());
}

void FullyShardedUnits::Reduce(Unit& unit) {
  if (pass_synchronized_ && failure_.ok()) (void)Fail(reductions_.Start(unit.flats));
}

void FullyShardedUnits::AwaitCopies() {
  if (options_.offload_to_host) route().parts.stream->Synchronize();
}

Status FullyShardedUnits::GatherAll() {
  CADRE_RETURN_IF_ERROR(failure_);
  return Fail(Guarded("gathering all parameters", [&]() -> Status {
    CADRE_RETURN_IF_ERROR(EndWatch());
    for (const auto& unit : units_) {
      Release(*unit);
      Require(*unit);
      for (const auto& flat : unit->flats) {
        if (failure_.ok()) (void)Fail(flat->ShowAsKept());
      }
    }
    return failure_;
  }));
}

Status FullyShardedUnits::ReleaseAll(bool keep) {
  return Fail(Guarded("giving all parameters back", [&] {
    for (const auto& unit : units_) {
      for (const auto& flat : unit->flats) {
        if (keep && failure_.ok()) flat->KeepOwnPart();
      }
      Release(*unit);
    }
    if (failure_.ok()) AwaitCopies();
    return failure_;
  }));
}

}  // namespace cadre::nn
