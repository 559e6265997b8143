// What workers may see of a generation's store, kept apart from the store itself: sums that nobody
// saw twice and that never go back, one's own words, the generation's own id, barriers that let
// nobody through too soon. One thread.
#ifndef CADRE_TESTS_SIMULATION_STORE_MODEL_H_
#define CADRE_TESTS_SIMULATION_STORE_MODEL_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "proto/store.pb.h"

namespace cadre::simulation {

// A generation for good: its number begins anew with the server's state.
struct GenerationKey {
  uint64_t server_id = 0;
  std::string job;
  uint64_t number = 0;

  friend bool operator<(const GenerationKey& a, const GenerationKey& b) {
    return std::tie(a.server_id, a.job, a.number) < std::tie(b.server_id, b.job, b.number);
  }
  friend bool operator==(const GenerationKey& a, const GenerationKey& b) {
    return std::tie(a.server_id, a.job, a.number) == std::tie(b.server_id, b.job, b.number);
  }
  std::string Text() const;
};

// What rank 0 of the generation publishes.
std::string IdOf(const GenerationKey& generation);

class StoreModel {
 public:
  // An operation is asked for, the first time. Returns what Answered is to be given.
  int64_t Asked(const GenerationKey& generation, const v1::StoreRequest& request);
  // It was answered with OK. Empty, or what is wrong.
  std::string Answered(const GenerationKey& generation, uint32_t world_size, int64_t asked,
                       const v1::StoreRequest& request, const v1::StoreReply& reply);

 private:
  struct Sum {
    int64_t asked = 0;
    int64_t largest = 0;
    std::set<int64_t> seen;
  };
  struct Generation {
    std::map<std::string, Sum> sums;
    std::map<std::string, std::string> written;
    std::map<std::string, std::set<int32_t>> entered;
  };
  std::map<GenerationKey, Generation> generations_;
};

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_STORE_MODEL_H_
