#include "worker_runtime/checkpoint/copy_parts.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

namespace cadre::checkpoint {
namespace {

constexpr int kMostCopiers = 4;
constexpr size_t kLeastBytesEach = size_t{16} << 20;

// Copies bytes `begin` to `end` of the concatenated parts.
void CopyRange(Span<const StatePart> parts, char* to, size_t begin, size_t end) {
  size_t at = 0;
  for (const StatePart& part : parts) {
    const size_t from = std::max(begin, at), until = std::min(end, at + part.size);
    if (from < until) {
      std::memcpy(to + from, static_cast<const char*>(part.data) + (from - at), until - from);
    }
    at += part.size;
  }
}

}  // namespace

int CopiersFor(size_t bytes, int workers_here) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency()) / workers_here;
  const int wanted = static_cast<int>(std::min<size_t>(bytes / kLeastBytesEach, kMostCopiers));
  return std::max(std::min(wanted, cores / 2), 1);
}

void CopyParts(Span<const StatePart> parts, char* to, int copiers) {
  size_t bytes = 0;
  for (const StatePart& part : parts) bytes += part.size;
  const size_t each = bytes / static_cast<size_t>(copiers);
  size_t begin = 0;
  std::vector<std::thread> others;
  for (int i = 1; i < copiers; ++i) {
    try {
      others.emplace_back([=] { CopyRange(parts, to, begin, begin + each); });
    } catch (const std::system_error&) {
      break;
    }
    begin += each;
  }
  CopyRange(parts, to, begin, bytes);
  for (std::thread& other : others) other.join();
}

}  // namespace cadre::checkpoint
