// One collective on a connected Gloo context, by the caller's thread. Throws what Gloo throws.
#ifndef CADRE_WORKER_RUNTIME_GLOO_GLOO_COLLECTIVES_H_
#define CADRE_WORKER_RUNTIME_GLOO_GLOO_COLLECTIVES_H_

#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "gloo/context.h"
#include "worker_runtime/communicator.h"

namespace cadre::gloo {

// The tags of one call: the same on all ranks for the same call, others for the next. A collective
// that consists of several takes several.
class Tags {
 public:
  Tags(uint32_t call, uint16_t fingerprint) : call_(call << 16), fingerprint_(fingerprint) {}
  uint32_t Next() { return call_ | fingerprint_++; }

 private:
  const uint32_t call_;
  uint16_t fingerprint_;
};

using GlooContext = std::shared_ptr<::gloo::Context>;

void GlooAllReduce(const GlooContext& context, Tags tags, const Buffer& buffer,
                   const Reduction& reduction);
void GlooReduce(const GlooContext& context, Tags tags, const Buffer& buffer,
                const Reduction& reduction, int root);
void GlooReduceScatter(const GlooContext& context, Tags tags, const Buffer& input,
                       const Buffer& output, const Reduction& reduction);
void GlooBroadcast(const GlooContext& context, Tags tags, const Buffer& buffer, int root);
void GlooAllGather(const GlooContext& context, Tags tags, const Buffer& input,
                   const Buffer& output);
void GlooAllGatherVarying(const GlooContext& context, Tags tags, const Buffer& input,
                          const Buffer& output, absl::Span<const size_t> counts);
void GlooBarrier(const GlooContext& context, Tags tags);

}  // namespace cadre::gloo

#endif  // CADRE_WORKER_RUNTIME_GLOO_GLOO_COLLECTIVES_H_
