#include "worker_runtime/checkpoint/crc32c.h"

#include <array>
#include <cstddef>
#include <cstring>

namespace cadre::checkpoint {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
constexpr size_t kSlices = 8;

using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

// Table k advances a byte that k more bytes follow, so eight bytes are taken at a time.
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < kSlices; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint32_t LittleEndian32(const char* bytes) {
  unsigned char b[4];
  std::memcpy(b, bytes, sizeof(b));
  return b[0] | (uint32_t{b[1]} << 8) | (uint32_t{b[2]} << 16) | (uint32_t{b[3]} << 24);
}

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, absl::string_view bytes) {
  crc = ~crc;
  while (bytes.size() >= kSlices) {
    const uint32_t low = crc ^ LittleEndian32(bytes.data());
    const uint32_t high = LittleEndian32(bytes.data() + 4);
    crc = kTables[7][low & 0xff] ^ kTables[6][(low >> 8) & 0xff] ^ kTables[5][(low >> 16) & 0xff] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xff] ^ kTables[2][(high >> 8) & 0xff] ^
          kTables[1][(high >> 16) & 0xff] ^ kTables[0][high >> 24];
    bytes.remove_prefix(kSlices);
  }
  for (const char c : bytes)
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

}  // namespace cadre::checkpoint
