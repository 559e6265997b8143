// A collective in words, the same on all ranks that make the same call: for comparing, and for
// errors. Pure.
#ifndef CADRE_WORKER_RUNTIME_BACKEND_CALL_TEXT_H_
#define CADRE_WORKER_RUNTIME_BACKEND_CALL_TEXT_H_

#include <cstddef>
#include <string>

#include "cadre/communicator.h"
#include "cadre/span.h"

namespace cadre::backend {

// "5 float32"
std::string TextOf(const Buffer& buffer);

// "all-reduce (sum) of 5 float32" and so on.
std::string AllReduceText(const Buffer& buffer, const Reduction& reduction);
std::string ReduceText(const Buffer& buffer, const Reduction& reduction, int root);
std::string ReduceScatterText(const Buffer& output, const Reduction& reduction);
std::string ReduceScatterVaryingText(const Buffer& input, const Reduction& reduction,
                                     Span<const size_t> counts);
std::string BroadcastText(const Buffer& buffer, int root);
std::string AllGatherText(const Buffer& input);
std::string AllGatherVaryingText(const Buffer& output, Span<const size_t> counts);

}  // namespace cadre::backend

#endif  // CADRE_WORKER_RUNTIME_BACKEND_CALL_TEXT_H_
