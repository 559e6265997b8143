// A job's phase and pace as text, for server and launcher (the dashboard has its own in dom.js),
// and the figures that its program reports. Pure; any thread.
#ifndef CADRE_RPC_JOB_PROGRESS_H_
#define CADRE_RPC_JOB_PROGRESS_H_

#include <google/protobuf/repeated_field.h>

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace cadre::rpc {

// "running", "cancelled"; "starting" for a job that no server has reported yet.
std::string PhaseName(v1::JobPhase phase);

// Whether no step has come for several times the usual step time: values reported with the last
// step, such as a rate, are then out of date.
bool IsStalled(const v1::JobProgress& progress);
// "no step for 25s" if the job stands still, otherwise empty.
std::string StallText(const v1::JobProgress& progress);

// Figures are metrics that a program reports under names of its own. There are rules for their
// number and names: the agent checks those of a worker, and the server checks again because it does
// not trust agents.
using Figures = google::protobuf::RepeatedPtrField<v1::Figure>;

inline constexpr int kMaxFigures = 16;
inline constexpr size_t kMaxFigureName = 40;

// A name has letters, digits, '_', '.' and '/', begins with a letter, and must have no meaning in
// Cadre.
bool IsFigureName(absl::string_view name);

// Sets the figure of this name. Returns false, and leaves it out, if there are too many figures or
// the name may not be used.
bool SetFigure(absl::string_view name, double value, Figures* figures);

// Returns the figures that SetFigure accepts, in their order.
Figures CheckedFigures(const Figures& figures);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_JOB_PROGRESS_H_
