// A cluster of three nodes n0 to n2 with two CPUs each, and a user who has the commands under
// Slurm's names there.
#ifndef CADRE_TESTS_END_TO_END_SLURM_USER_H_
#define CADRE_TESTS_END_TO_END_SLURM_USER_H_

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/served_cluster.h"

namespace cadre {

class SlurmUser : public ServedCluster {
 protected:
  void SetUp() override {
    ServedCluster::SetUp();
    const auto installed = StartCadre({"slurm", "install", directory_ + "/bin"});
    ASSERT_EQ(installed->Wait(kTimeout), 0) << OutputOf(*installed);
  }
  // Runs the line in bash, with these commands on PATH, in the test's directory.
  std::unique_ptr<Process> Shell(const std::string& line) {
    return StartProgram(
        "/bin/bash",
        {"-c", absl::StrCat("cd ", directory_, "; export PATH=", directory_, "/bin:$PATH; ", line)},
        {{"CADRE_SERVER", absl::StrCat("127.0.0.1:", port_)}, {"CADRE_TOKEN_FILE", Token()}});
  }
  // Expects that the line succeeds; returns its standard output without the last newline.
  std::string Run(const std::string& line) {
    const auto shell = Shell(line);
    EXPECT_EQ(shell->Wait(kTimeout), 0) << line << "\n" << OutputOf(*shell);
    return std::string(absl::StripSuffix(shell->standard_output(), "\n"));
  }
  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(directory_ + "/" + name) << content;
    return name;
  }
  std::string Output(const std::string& name) {
    std::ostringstream content;
    content << std::ifstream(directory_ + "/" + name).rdbuf();
    return content.str();
  }
};

}  // namespace cadre

#endif  // CADRE_TESTS_END_TO_END_SLURM_USER_H_
