// Figures that a program reports under names of its own: how many, and under which names. What
// comes from a worker is checked here by its agent, and again by the server, which believes no
// agent. Pure; any thread.
#ifndef CADRE_RPC_FIGURES_H_
#define CADRE_RPC_FIGURES_H_

#include <google/protobuf/repeated_field.h>

#include <cstddef>

#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace cadre::rpc {

using Figures = google::protobuf::RepeatedPtrField<v1::Figure>;

inline constexpr int kMaxFigures = 16;
inline constexpr size_t kMaxFigureName = 40;

// Letters, digits, '_', '.' and '/', a letter first, and none of the names that mean something to
// Cadre.
bool IsFigureName(absl::string_view name);

// Replaces the one of this name. One too many, or with a name that is none, is left out; true: it
// was not.
bool SetFigure(absl::string_view name, double value, Figures* figures);

// Those that SetFigure takes, in their order.
Figures CheckedFigures(const Figures& figures);

}  // namespace cadre::rpc

#endif  // CADRE_RPC_FIGURES_H_
