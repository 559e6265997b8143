// Identifies a generation by its number and the server's state. A server that lost its state counts
// from 1 again.
#ifndef CADRE_BASE_GENERATION_ID_H_
#define CADRE_BASE_GENERATION_ID_H_

#include <cstdint>

namespace cadre {

struct GenerationId {
  // Random for each state of the server; one that lost its state gets another.
  uint64_t server_id = 0;
  uint64_t number = 0;  // 0: none

  bool exists() const { return number != 0; }
  friend bool operator==(const GenerationId& a, const GenerationId& b) {
    return a.server_id == b.server_id && a.number == b.number;
  }
  friend bool operator!=(const GenerationId& a, const GenerationId& b) { return !(a == b); }
};

// The generation to which a NodeMessage or a ServerMessage refers.
template <typename Message>
GenerationId GenerationOf(const Message& message) {
  return {message.server_id(), message.generation()};
}

template <typename Message>
void SetGeneration(Message* message, const GenerationId& id) {
  message->set_server_id(id.server_id);
  message->set_generation(id.number);
}

}  // namespace cadre

#endif  // CADRE_BASE_GENERATION_ID_H_
