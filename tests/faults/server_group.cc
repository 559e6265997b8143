#include "tests/faults/server_group.h"

#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/faults/kill_at_commit.h"

namespace cadre {

ServerGroup::ServerGroup(size_t servers, std::string etcd_urls)
    : etcd_urls_(std::move(etcd_urls)),
      token_file_(MakeTempDir("token") + "/token"),
      servers_(servers) {
  std::ofstream(token_file_) << "0123456789abcdef0123456789abcdef\n";
  chmod(token_file_.c_str(), 0600);
  for (size_t i = 0; i < servers; ++i) ports_.push_back(FreePort());
}

std::string ServerGroup::endpoint(size_t i) const { return absl::StrCat("127.0.0.1:", ports_[i]); }

std::string ServerGroup::endpoints() const {
  std::string all;
  for (size_t i = 0; i < ports_.size(); ++i) {
    absl::StrAppend(&all, all.empty() ? "" : ",", endpoint(i));
  }
  return all;
}

bool ServerGroup::Start(size_t i, const std::string& kill) {
  const char* const program = kill.empty() ? kCadre : kMortalCadre;
  servers_[i] = StartProgram(program,
                             {"server", "--port", absl::StrCat(ports_[i]), "--token-file",
                              token_file_, "--etcd", etcd_urls_.empty() ? etcd_.url() : etcd_urls_},
                             {{kKillAtCommit, kill}});
  if (servers_[i] == nullptr) return false;
  const bool serves = servers_[i]->WaitForLine("serving at").has_value();
  EXPECT_TRUE(serves) << OutputOf(*servers_[i]);
  return serves;
}

bool ServerGroup::AwaitLeads(size_t i, absl::Duration timeout) {
  const bool leads = servers_[i]->WaitForLine("this server leads", timeout).has_value();
  EXPECT_TRUE(leads) << OutputOf(*servers_[i]);
  return leads;
}

void ServerGroup::Kill(size_t i) {
  servers_[i]->Kill(SIGKILL);
  EXPECT_EQ(servers_[i]->Wait(), 128 + SIGKILL) << OutputOf(*servers_[i]);
  servers_[i].reset();
}

bool ServerGroup::WaitDead(size_t i, absl::Duration timeout) {
  const std::optional<int> status = servers_[i]->Wait(timeout);
  if (!status.has_value()) return false;
  EXPECT_EQ(*status, 128 + SIGKILL) << OutputOf(*servers_[i]);
  servers_[i].reset();
  return true;
}

std::unique_ptr<Process> ServerGroup::StartNode(int node, const std::string& nnodes,
                                                const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"run",
                                        "--nnodes",
                                        nnodes,
                                        "--node-name",
                                        absl::StrCat("node", node),
                                        "--token-file",
                                        token_file_,
                                        "--nproc-per-node",
                                        "2",
                                        "--job-name",
                                        "job",
                                        "--log-dir",
                                        MakeTempDir("logs"),
                                        "--rdzv-endpoint",
                                        endpoints()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return StartCadre(arguments);
}

}  // namespace cadre
