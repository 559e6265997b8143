#include "tests/simulation/outside_client.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre::simulation {
namespace {

constexpr absl::Duration kRepeatAfter = absl::Milliseconds(700);
// Of one request; then it is left open what became of it.
constexpr int kSentMax = 20;

}  // namespace

OutsideClient::OutsideClient(World& world, const Plan& plan, Network& network, Server& server,
                             Oracle& oracle, std::string job)
    : world_(world),
      plan_(plan),
      network_(network),
      server_(server),
      oracle_(oracle),
      job_(std::move(job)),
      client_(world.random.Next()) {}

void OutsideClient::Start() {
  world_.schedule.In(world_.random.Between(absl::Milliseconds(100), absl::Seconds(3)),
                     [this] { Next(); });
}

void OutsideClient::Next() {
  if (world_.calm) return;
  generation_ = oracle_.Newest(job_);
  if (generation_.number == 0) return Start();
  request_.set_job(job_);
  request_.set_generation(generation_.number);
  request_.set_client(client_);
  request_.set_request_id(request_.request_id() + 1);
  request_.mutable_add()->set_key("outside");
  request_.mutable_add()->set_delta(1);
  asked_ = oracle_.store().Asked(generation_, request_);
  waits_ = true;
  sent_ = 0;
  Send();
}

void OutsideClient::Send() {
  if (++sent_ > kSentMax) return Start();
  for (int copies = world_.random.Percent(plan_.odds.call_twice) ? 2 : 1; copies > 0; --copies) {
    if (world_.random.Percent(plan_.odds.call_lost)) continue;
    world_.schedule.In(network_.Delay(), [this, request = request_] {
      server_.Call(request, [this](const v1::StoreReply& reply) {
        if (world_.random.Percent(plan_.odds.call_lost)) return;
        world_.schedule.In(network_.Delay(), [this, reply] { OnReply(reply); });
      });
    });
  }
  world_.schedule.In(kRepeatAfter, [this, id = request_.request_id()] {
    if (waits_ && id == request_.request_id()) Send();
  });
}

void OutsideClient::OnReply(const v1::StoreReply& reply) {
  if (!waits_ || reply.request_id() != request_.request_id()) return;
  switch (static_cast<absl::StatusCode>(reply.code())) {
    case absl::StatusCode::kOk: {
      waits_ = false;
      const std::string wrong = oracle_.store().Answered(generation_, 0, asked_, request_, reply);
      if (!wrong.empty()) oracle_.Break(absl::StrCat("outside: ", generation_.Text(), ": ", wrong));
      return Start();
    }
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kNotFound:
      waits_ = false;
      return Start();
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
      return;  // it is sent again
    default:
      oracle_.Break(absl::StrCat("outside: the store says ", reply.message()));
  }
}

}  // namespace cadre::simulation
