// What the work of the pretend device costs in the device's own time. Nothing, unless a test says.
#ifndef CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_COSTS_H_
#define CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_COSTS_H_

#include <cstddef>
#include <limits>

namespace cadre::pretend {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// Times in seconds, speeds in a second.
struct Costs {
  double operator_seconds = 0;
  // Read or written by an operator, once for each tensor.
  double bytes = kUnlimited;
  // Multiplications of two elements in products of matrices.
  double products = kUnlimited;
  // Of a collective, from when the last of the ranks has come to it; with the bytes of its buffer.
  double bus_seconds = 0;
  double bus_bytes = kUnlimited;

  double OfOperator(size_t its_bytes, double its_products = 0) const;
  double OfCollective(size_t its_bytes) const;
  // Whether ranks must tell each other what time it is.
  bool HaveBus() const { return OfCollective(1) > 0; }
};

// Of all devices; while nothing runs on them. The host itself takes no time, whatever it does: what
// it waits for must be counted (HostWaits()).
void SetCosts(const Costs& costs);
Costs GetCosts();

}  // namespace cadre::pretend

#endif  // CADRE_WORKER_RUNTIME_TORCH_PRETEND_DEVICE_COSTS_H_
