// Numbers as PyTorch's TCPStore sends them.
#ifndef CADRE_AGENT_TORCH_STORE_LITTLE_ENDIAN_H_
#define CADRE_AGENT_TORCH_STORE_LITTLE_ENDIAN_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace cadre::agent {

inline std::string LittleEndian(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}
inline std::string LittleEndian32(uint32_t value) { return LittleEndian(value, 4); }
inline std::string LittleEndian64(uint64_t value) { return LittleEndian(value, 8); }

}  // namespace cadre::agent

#endif  // CADRE_AGENT_TORCH_STORE_LITTLE_ENDIAN_H_
