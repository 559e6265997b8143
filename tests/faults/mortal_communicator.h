// A communicator that kills its process in a chosen gather or reduce-scatter: right before it, or
// when it has begun.
#ifndef CADRE_TESTS_FAULTS_MORTAL_COMMUNICATOR_H_
#define CADRE_TESTS_FAULTS_MORTAL_COMMUNICATOR_H_

#include <functional>
#include <memory>
#include <utility>

#include "cadre/communicator.h"

namespace cadre {

class MortalCommunicator : public Communicator {
 public:
  enum class Call { kGather, kReduceScatter };
  // Called before a call, and again when it has begun. It does not return if the process is to die
  // there.
  using Fate = std::function<void(Call call, bool begun)>;

  MortalCommunicator(Communicator& inner, Fate fate) : inner_(inner), fate_(std::move(fate)) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::shared_ptr<Work> AllReduce(Buffer buffer, Reduction reduction) override {
    return inner_.AllReduce(buffer, reduction);
  }
  std::shared_ptr<Work> ReduceScatter(Buffer input, Buffer output, Reduction reduction) override {
    return Mortal(Call::kReduceScatter,
                  [&] { return inner_.ReduceScatter(input, output, reduction); });
  }
  std::shared_ptr<Work> Broadcast(Buffer buffer, int root) override {
    return inner_.Broadcast(buffer, root);
  }
  std::shared_ptr<Work> AllGather(Buffer input, Buffer output) override {
    return Mortal(Call::kGather, [&] { return inner_.AllGather(input, output); });
  }
  std::shared_ptr<Work> Barrier() override { return inner_.Barrier(); }
  Result<std::shared_ptr<void>> AllocateBuffer(size_t bytes) override {
    return inner_.AllocateBuffer(bytes);
  }
  void Abort() override { inner_.Abort(); }

 private:
  template <typename Start>
  std::shared_ptr<Work> Mortal(Call call, const Start& start) {
    fate_(call, false);
    std::shared_ptr<Work> work = start();
    fate_(call, true);
    return work;
  }

  Communicator& inner_;
  const Fate fate_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_FAULTS_MORTAL_COMMUNICATOR_H_
