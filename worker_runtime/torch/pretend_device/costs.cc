#include "worker_runtime/torch/pretend_device/costs.h"

#include <algorithm>
#include <mutex>

namespace cadre::pretend {
namespace {

std::mutex mutex;
Costs costs_now;  // guarded by mutex

}  // namespace

double Costs::OfOperator(size_t its_bytes, double its_products) const {
  return operator_seconds +
         std::max(static_cast<double>(its_bytes) / bytes, its_products / products);
}

double Costs::OfCollective(size_t its_bytes) const {
  return bus_seconds + static_cast<double>(its_bytes) / bus_bytes;
}

void SetCosts(const Costs& costs) {
  const std::lock_guard<std::mutex> lock(mutex);
  costs_now = costs;
}

Costs GetCosts() {
  const std::lock_guard<std::mutex> lock(mutex);
  return costs_now;
}

}  // namespace cadre::pretend
