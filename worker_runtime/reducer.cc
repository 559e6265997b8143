#include "cadre/reducer.h"

#include <cxxabi.h>

#include <cstdlib>
#include <string>
#include <typeinfo>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre/same_options.h"
#include "worker_runtime/bucketed_reducer.h"

namespace cadre {
namespace {

const char* Name(NonFinite non_finite) {
  switch (non_finite) {
    case NonFinite::kError:
      return "kError";
    case NonFinite::kSkip:
      return "kSkip";
    case NonFinite::kIgnore:
      return "kIgnore";
  }
  return "unknown";
}

std::string Describe(const CommunicationHook* hook) {
  if (hook == nullptr) return "none";
  int status = 0;
  char* const name = abi::__cxa_demangle(typeid(*hook).name(), nullptr, nullptr, &status);
  std::string kind = status == 0 ? name : typeid(*hook).name();
  std::free(name);
  const std::string chosen = hook->DescribeOptions();
  return chosen.empty() ? kind : absl::StrCat(kind, " (", chosen, ")");
}

ChosenOptions ChosenIn(const ReducerOptions& options) {
  return {
      {"ReducerOptions::first_bucket_bytes", std::to_string(options.first_bucket_bytes)},
      {"ReducerOptions::bucket_bytes", std::to_string(options.bucket_bytes)},
      {"ReducerOptions::static_graph", options.static_graph ? "true" : "false"},
      {"ReducerOptions::non_finite", Name(options.non_finite)},
      {"ReducerOptions::fingerprint_every", std::to_string(options.fingerprint_every)},
      {"ReducerOptions::broadcast_parameters", options.broadcast_parameters ? "true" : "false"},
      {"ReducerOptions::hook", Describe(options.hook.get())},
  };
}

}  // namespace

Result<std::unique_ptr<Reducer>> Reducer::Create(Communicator& communicator,
                                                 std::vector<Parameter> parameters,
                                                 ReducerOptions options) {
  if (options.page == nullptr) options.page = progress::ProgressPage::OfThisWorker();
  // The exchange comes first, so that a rank whose own check fails leaves nobody waiting in it.
  RETURN_IF_ERROR(CheckSameParameters(communicator, parameters, options.timeout));
  RETURN_IF_ERROR(CheckSameOptions(communicator, ChosenIn(options), options.timeout));
  if (options.fingerprint_every < 0) {
    return InvalidArgumentError(absl::StrCat("ReducerOptions::fingerprint_every is ",
                                             options.fingerprint_every,
                                             "; it is a number of steps, or 0: never"));
  }
  RETURN_IF_ERROR(CheckReducible(parameters, reduce::kMaxTailWord - 1));
  if (options.broadcast_parameters) {
    RETURN_IF_ERROR(BroadcastParameters(communicator, parameters, options.timeout));
  }
  auto reducer =
      std::make_unique<BucketedReducer>(communicator, std::move(parameters), std::move(options));
  RETURN_IF_ERROR(reducer->LayOut(reduce::ReverseOrder(reducer->size())));
  return std::unique_ptr<Reducer>(std::move(reducer));
}

}  // namespace cadre
