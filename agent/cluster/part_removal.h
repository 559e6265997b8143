// Removes what users' jobs left, whatever that is: any number of files, any depth, names that
// change meanwhile. Blocks on the file system for as long as it takes; any thread.
#ifndef CADRE_AGENT_CLUSTER_PART_REMOVAL_H_
#define CADRE_AGENT_CLUSTER_PART_REMOVAL_H_

#include <string>

namespace cadre::agent {

// Removes an agent's own directory and what is in it. Directories that belong to a user are emptied
// as that user (as_user.h): a user who swaps names meanwhile can only make the agent remove files
// of the same user. False: something is left, for example files of another user in such a
// directory.
bool RemoveAsOwners(const std::string& path);

// Empties the directory. Holds three descriptors at most: what lies deeper is brought up before it
// is removed.
bool EmptyDirectory(int directory);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_PART_REMOVAL_H_
