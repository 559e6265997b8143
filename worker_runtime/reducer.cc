#include "cadre/reducer.h"

#include <cxxabi.h>

#include <cstdlib>
#include <string>
#include <typeinfo>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/bucketed_reducer.h"
#include "worker_runtime/reduce/same_options.h"

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

std::string KindOf(const CommunicationHook* hook) {
  if (hook == nullptr) return "none";
  int status = 0;
  char* const name = abi::__cxa_demangle(typeid(*hook).name(), nullptr, nullptr, &status);
  std::string kind = status == 0 ? name : typeid(*hook).name();
  std::free(name);
  const auto average = hook->plain_average();
  if (average && average->travels_as) {
    absl::StrAppend(&kind, " in ", backend::Name(*average->travels_as));
  }
  if (average && average->limit) absl::StrAppend(&kind, " of at most ", *average->limit);
  return kind;
}

reduce::ChosenOptions ChosenIn(const ReducerOptions& options) {
  return {
      {"first_bucket_bytes", std::to_string(options.first_bucket_bytes)},
      {"bucket_bytes", std::to_string(options.bucket_bytes)},
      {"static_graph", options.static_graph ? "true" : "false"},
      {"non_finite", Name(options.non_finite)},
      {"fingerprint_every", std::to_string(options.fingerprint_every)},
      {"broadcast_parameters", options.broadcast_parameters ? "true" : "false"},
      {"hook", KindOf(options.hook.get())},
  };
}

}  // namespace

Result<std::unique_ptr<Reducer>> Reducer::Create(Communicator& communicator,
                                                 std::vector<Parameter> parameters,
                                                 ReducerOptions options) {
  if (options.page == nullptr) options.page = progress::ProgressPage::OfThisWorker();
  // The exchange comes first, so that a rank whose own check fails leaves nobody waiting in it.
  RETURN_IF_ERROR(CheckSameParameters(communicator, parameters, options.timeout));
  RETURN_IF_ERROR(reduce::CheckSameOptions(communicator, ChosenIn(options), options.timeout));
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
