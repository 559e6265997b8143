// The pods of examples/kubernetes, as network namespaces with the environment and the names that
// Kubernetes gives them. Needs root; skipped without.
#include <sys/stat.h>

#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/node_network.h"
#include "yaml-cpp/yaml.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

TEST(KubernetesTest, ThePodsOfTheManifestMakeOneJob) {
  const std::vector<YAML::Node> documents = YAML::LoadAllFromFile("examples/kubernetes/job.yaml");
  ASSERT_EQ(documents.size(), 2u);
  const YAML::Node service = documents[0];
  const YAML::Node job = documents[1];
  const YAML::Node pod = job["spec"]["template"]["spec"];
  const YAML::Node container = pod["containers"][0];
  const auto name = job["metadata"]["name"].as<std::string>();
  ASSERT_EQ(job["spec"]["completionMode"].as<std::string>(), "Indexed");
  ASSERT_EQ(job["spec"]["completions"].as<int>(), 2);
  // What makes "<job>-<index>.<service>" a pod's name.
  EXPECT_EQ(service["spec"]["clusterIP"].as<std::string>(), "None");
  EXPECT_EQ(service["spec"]["selector"]["job-name"].as<std::string>(), name);
  EXPECT_EQ(pod["subdomain"].as<std::string>(), service["metadata"]["name"].as<std::string>());

  const absl::Status entered = NodeNetwork::Enter();
  if (absl::IsPermissionDenied(entered)) GTEST_SKIP() << entered.message();
  ASSERT_OK(entered);
  ASSERT_OK(NodeNetwork::NameNodes({"mnist-0.mnist", "mnist-1.mnist"}));
  const std::string token = MakeTempDir("token") + "/token";
  ASSERT_OK(WriteTokenFile(token, RandomToken()));
  chmod(token.c_str(), 0400);
  std::vector<std::unique_ptr<Process>> pods;
  for (const int index : {0, 1}) {
    ASSERT_OK(NodeNetwork::Add(index + 1));
    ProcessOptions options;
    options.argv = NodeNetwork::Inside(index + 1);
    for (const YAML::Node& word : container["command"]) {
      options.argv.push_back(word.as<std::string>());
    }
    // In the place of the image's programs.
    for (std::string& word : options.argv) {
      if (word == "cadre") word = kCadre;
    }
    ASSERT_EQ(options.argv.back(), "mnist_cnn");
    options.argv.back() = kProbe;
    options.argv.insert(options.argv.end(), {"--exit", "0"});
    for (const YAML::Node& variable : container["env"]) {
      options.env[variable["name"].as<std::string>()] = variable["value"].as<std::string>();
    }
    ASSERT_EQ(options.env["CADRE_TOKEN_FILE"],
              container["volumeMounts"][0]["mountPath"].as<std::string>());
    options.env["CADRE_TOKEN_FILE"] = token;
    options.env["CADRE_LOG_DIR"] = MakeTempDir("logs");
    options.env["HOSTNAME"] = absl::StrCat(name, "-", index);
    options.env["JOB_COMPLETION_INDEX"] = absl::StrCat(index);
    auto process = Process::Start(options);
    ASSERT_OK(process);
    pods.push_back(*std::move(process));
  }
  for (const int index : {0, 1}) {
    EXPECT_EQ(pods[index]->Wait(kTimeout), 0) << OutputOf(*pods[index]);
    for (const int local : {0, 1}) {
      EXPECT_THAT(pods[index]->standard_output(),
                  HasSubstr(absl::StrCat("probe rank=", 2 * index + local, " local=", local,
                                         " world=4 node=", index)));
    }
  }
}

}  // namespace
}  // namespace cadre
