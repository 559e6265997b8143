// How many jobs each user has, and which of the ended ones is forgotten next. One thread.
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

  // Jobs of the user that have not ended.
  size_t Live(const std::string& user) const;

  // The oldest ended job of the user who has most of them, so that nobody's many jobs push out
  // others' few. 0: there is none.
  uint64_t NextToForget() const;

 private:
  struct Jobs {
    size_t live = 0;
    std::set<uint64_t> ended;
  };
  // Of users who have any.
  std::map<std::string, Jobs> users_;
};

}  // namespace cadre::state

#endif  // CADRE_RENDEZVOUS_STATE_JOBS_BY_USER_H_
