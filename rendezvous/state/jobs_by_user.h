// How many jobs each user has, how much they take, and which of the ended ones is forgotten next.
// One thread.
#ifndef CADRE_RENDEZVOUS_STATE_JOBS_BY_USER_H_
#define CADRE_RENDEZVOUS_STATE_JOBS_BY_USER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace cadre::state {

// `user`: the job's owner; empty: the administrators. `ended`: its position in the order in which
// jobs ended; 0: it lives.
class JobsByUser {
 public:
  void Add(const std::string& user, uint64_t ended);
  void Remove(const std::string& user, uint64_t ended);

  // Those that have not ended take more, or less, of a user who has some.
  struct Bytes {
    size_t specs = 0;
    size_t stores = 0;
  };
  void Grow(const std::string& user, const Bytes& by);
  void Shrink(const std::string& user, const Bytes& by);

  // Jobs of the user that have not ended, and what they take.
  size_t Live(const std::string& user) const;
  Bytes BytesOf(const std::string& user) const;
  const Bytes& all_bytes() const { return all_; }

  // The oldest ended job of the user who has most of them, so that nobody's many jobs push out
  // others' few. 0: there is none.
  uint64_t NextToForget() const;

 private:
  struct Jobs {
    size_t live = 0;
    std::set<uint64_t> ended;
    Bytes bytes;
  };
  // Of users who have any.
  std::map<std::string, Jobs> users_;
  Bytes all_;
};

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_JOBS_BY_USER_H_
