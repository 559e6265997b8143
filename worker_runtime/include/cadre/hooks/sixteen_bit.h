// Sends gradients as 16-bit floating point numbers, which halves the bytes.
//
//   options.reducer.hook = Fp16Hook();                                 // the average, in 16 bits
//   options.reducer.hook = Bf16Hook(std::make_shared<PowerSgdHook>(power_sgd));
#ifndef CADRE_HOOKS_SIXTEEN_BIT_H_
#define CADRE_HOOKS_SIXTEEN_BIT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cadre/communication_hook.h"

namespace cadre::hooks {

class HookThread;

// Casts a float32 bucket, lets `inner` reduce the 16-bit copy, and casts the result back into the
// bucket. It has no error feedback of its own; `inner` may have.
class SixteenBitHook : public CommunicationHook {
 public:
  // `type` is kFloat16 or kBfloat16. A null `inner` is the plain average.
  SixteenBitHook(DataType type, std::shared_ptr<CommunicationHook> inner);
  ~SixteenBitHook() override;

  // INVALID_ARGUMENT: a bucket is not float32.
  Status Layout(Span<const BucketView> buckets) override;
  std::shared_ptr<Work> Start(Communicator& communicator, const BucketView& bucket) override;
  Result<std::string> SaveState() const override { return inner_->SaveState(); }
  Status LoadState(std::string_view state) override { return inner_->LoadState(state); }
  bool KeepsReplicasEqual() const override { return inner_->KeepsReplicasEqual(); }
  uint64_t bytes_given() const override { return inner_->bytes_given(); }
  std::optional<PlainAverage> plain_average() const override;
  std::string DescribeOptions() const override;

 private:
  Status Reduce(Communicator& communicator, const BucketView& bucket);

  const DataType type_;
  const std::shared_ptr<CommunicationHook> inner_;
  // The 16-bit copy of each bucket.
  std::vector<std::vector<uint16_t>> copies_;
  // The last member, so that its thread stops before the memory that its operations use is freed.
  const std::unique_ptr<HookThread> thread_;
};

// Without `inner`, these wrap the plain average, which divides before it sums, like PyTorch's
// fp16_compress_hook and bf16_compress_hook; with `inner`, they correspond to PyTorch's wrappers.
std::shared_ptr<CommunicationHook> Fp16Hook(std::shared_ptr<CommunicationHook> inner = nullptr);
std::shared_ptr<CommunicationHook> Bf16Hook(std::shared_ptr<CommunicationHook> inner = nullptr);

}  // namespace cadre::hooks

#endif  // CADRE_HOOKS_SIXTEEN_BIT_H_
