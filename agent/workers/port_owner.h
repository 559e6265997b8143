// Which process listens at a TCP port of this machine. Reads /proc.
#ifndef CADRE_AGENT_WORKERS_PORT_OWNER_H_
#define CADRE_AGENT_WORKERS_PORT_OWNER_H_

#include <cstdint>
#include <string>

namespace cadre::agent {

// "python3 (pid 812)"; "a process of user id 1001" where its process is not this user's to look at.
// `address`: the numeric one that is wanted, which listeners of all addresses have too; anything
// else, or empty: whichever. Empty: nobody is seen to listen.
std::string WhoListensAt(const std::string& address, uint16_t port);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_PORT_OWNER_H_
