// Every cadre command that README.md and the pages of docs/ show, typed as a reader would. (Those
// of the pages for Slurm and MPI: tests/compatibility; of the package: tests/packaging.)
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/documentation/reader.h"
#include "tests/testing/documented_commands.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using DocumentationTest = Reader;

const std::vector<std::string> kTwo = {"node1", "node2"};

// As on a real machine: agents end what they started, and the command that follows says how.
void EndAll(const std::vector<std::unique_ptr<Process>>& running, absl::Duration timeout) {
  for (auto process = running.rbegin(); process != running.rend(); ++process) {
    (*process)->Kill(SIGTERM);
    EXPECT_TRUE((*process)->Wait(timeout).has_value()) << OutputOf(**process);
  }
}

TEST_F(DocumentationTest, Readme) {
  for_ = {{" ...", " --rdzv-endpoint head --token-file job.token train.py"},
          // Without one there is nothing to show.
          {"--nproc-per-node gpu", "--nproc-per-node auto"}};
  Follow("README.md",
         {{"cadre run --standalone --nproc-per-node 2 train.py", "trained 1 of 2"},
          {"cadre run --standalone --nproc-per-node gpu --max-restarts 3 train.py", "trained 0 of"},
          {"cadre run --nnodes 2 --nproc-per-node 4 --rdzv-endpoint head:29400 --token-file "
           "job.token train.py",
           "trained 7 of 8", kTwo},
          {"cadre run --nnodes 2:4 ...", "trained 1 of 2", kTwo},
          {"cadre run job.yaml --rdzv-endpoint head --token-file job.token --max-restarts 5",
           "trained 3 of 4", kTwo},
          {"cadre run --hostfile hosts train.py", "trained 3 of 4"}});
}

TEST_F(DocumentationTest, SeveralNodes) {
  Follow("docs/several_nodes.md", {{"cadre run --nnodes 2 --nproc-per-node 4 --rdzv-endpoint "
                                    "head:29400 --token-file job.token train.py",
                                    "trained 7 of 8", kTwo},
                                   {"cadre run --encrypt --nnodes 2 --nproc-per-node 4 "
                                    "--rdzv-endpoint head:29400 --token-file job.token train.py",
                                    "trained 7 of 8", kTwo}});
}

TEST_F(DocumentationTest, OperatingAServer) {
  ASSERT_EQ(mkdir(absl::StrCat(directory_, "/lib").c_str(), 0755), 0);
  for_["/var/lib/"] = absl::StrCat(directory_, "/lib/");
  const std::vector<std::string> all = {"node1", "node2", "node3", "node4"};
  const std::string etcd = "http://10.0.0.7:2379,http://10.0.0.8:2379";
  running_.push_back(On("node3", absl::StrCat("etcd --data-dir ", MakeTempDir("etcd"),
                                              " --listen-peer-urls http://127.0.0.1:2380"
                                              " --listen-client-urls ",
                                              etcd, " --advertise-client-urls ", etcd)));
  ASSERT_TRUE(running_[0]->WaitForLine("ready to serve client requests", kTimeout));
  const std::string replica =
      absl::StrCat("cadre server --host 10.0.0.6 --token-file token --etcd ", etcd);
  Follow("docs/operating_a_server.md",
         {{"cadre server --state-dir /var/lib/cadre", "serving at", {"node4"}, Until::kSpoken},
          {"cadre server --state-dir none", "keeping no state", {"node4"}, Until::kSpoken},
          {"cadre run --rdzv-endpoint node0 --token-file token --state-dir ./state …",
           "trained 0 of 1",
           {"node1"}},
          {"cadre server --host 10.0.0.5 --token-file token", "0.0.5:", {"node1"}, Until::kSpoken},
          {"cadre server --host 10.0.0.5 --token-file token --etcd " + etcd,
           "leads",
           {"node1"},
           Until::kForever},
          {"cadre run --rdzv-endpoint 10.0.0.5 --token-file token --nnodes 4 …", "trained 3 of 4",
           all},
          {"cadre run --rdzv-endpoint 10.0.0.5,10.0.0.6 --token-file token --nnodes 4 …",
           "trained 3 of 4", all},
          {"cadre status --server 10.0.0.5,10.0.0.6 --token-file token", "succeeded"}});
}

TEST_F(DocumentationTest, Upgrading) {
  Follow(
      "docs/upgrading.md",
      {{"cadre server --host 10.0.0.5 --token-file token", "serving", {"node1"}, Until::kForever},
       {"cadre agent --server 10.0.0.5 --token-file token",
        "node node2 is in the cluster",
        {"node2"},
        Until::kForever},
       {"cadre nodes --server 10.0.0.5 --token-file token", "node2"}});
}

TEST_F(DocumentationTest, OneFileForAMachine) {
  const std::string yaml = DocumentedYaml(Page("docs/operating_a_server.md"));
  std::ofstream(directory_ + "/cadre.yaml")
      << absl::StrReplaceAll(yaml, {{"/etc/cadre", directory_}, {"/var/lib", directory_}});
  Type({"env CADRE_CONFIG=cadre.yaml cadre server",
        "serving at 10.0.0.5:29400",
        {"node1"},
        Until::kForever});
  Type({"env CADRE_CONFIG=cadre.yaml cadre agent",
        "node node2 is in the cluster",
        {"node2"},
        Until::kSpoken});
  Type({"env CADRE_CONFIG=cadre.yaml cadre status", "NAME", {"node2"}});
}

TEST_F(DocumentationTest, ACluster) {
  std::ofstream(directory_ + "/job.yaml") << "name: mnist\n"
                                             "command: [python3, train.py]\n"
                                             "nodes: 2\n"
                                             "workers_per_node: 2\n";
  std::ofstream(directory_ + "/train.py")
      << "import os, time\n"
         "print('training', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"
         "while True: time.sleep(0.05)\n";
  const std::string page = Page("docs/a_cluster.md");
  for (const std::string& line : DocumentedCommands(page)) {
    // What holds for the commands below it hurts none above.
    if (absl::StartsWith(line, "export ")) {
      for_["cadre "] = absl::StrCat("env ", line.substr(strlen("export ")), " cadre ");
    }
  }
  ASSERT_EQ(for_.count("cadre "), 1u) << "the page sets nothing for its commands";
  for_["n7"] = "node3";
  // Only root runs this test, and an agent of root runs nobody's jobs but for others.
  for_["--label switch=s1"] = "--label switch=s1 --user root --cpus 2";
  for_["--user alice"] = "--user root --allow-root";
  const std::vector<std::string> workers = {"node2", "node3"};
  Follow("docs/a_cluster.md",
         {{"cadre token new cluster.token", ""},
          {"cadre server --host 10.0.0.5 --token-file cluster.token",
           "serving at 10.0.0.5",
           {"node1"},
           Until::kForever},
          {"cadre agent --server 10.0.0.5 --token-file cluster.token --label switch=s1",
           "is in the cluster", workers, Until::kForever},
          {"cadre token new alice.token --user alice --token-file cluster.token --server 10.0.0.5",
           "of user root, until"},
          {"cadre submit job.yaml --follow", "training 3 of 4", {"node4"}, Until::kForever},
          {"cadre status", "running"},
          {"cadre status --me --state live", "running"},
          {"cadre why mnist", "4 of 4 workers run"},
          {"cadre logs mnist --rank 3 --follow", "training 3 of 4", {"node4"}, Until::kSpoken},
          {"cadre nodes", "switch=s1"},
          {"cadre drain n7 --reason \"new fan\" --token-file cluster.token", "drained: new fan"},
          {"cadre undrain n7 --token-file cluster.token", "up  "},
          {"cadre cancel mnist", "mnist"}});
  EndAll(running_, kTimeout);
}

// Nothing has ended on this server, so that the tables have no jobs.
TEST_F(DocumentationTest, Accounting) {
  Type({"cadre server", "serving at 127.0.0.1:29400", {"node1"}, Until::kForever});
  Follow("docs/accounting.md", {{"cadre history", "ID  NAME"},
                                {"cadre history --me --since 2026-11-01 --state failed", "CAUSE"},
                                {"cadre history 57 58_3 57.2", "ID  NAME"},
                                {"cadre history --user alice --steps --limit 1000 --json", "more"},
                                {"cadre usage", "total"},
                                {"cadre usage --by cause", "RECOVERED"},
                                {"cadre usage --by node --since now-7days", "NODE"},
                                {"cadre usage --by day --json", "total"}});
  EndAll(running_, kTimeout);
}

TEST_F(DocumentationTest, FromSlurm) {
  std::ofstream(directory_ + "/train.sh") << "#!/bin/bash\n#SBATCH --nodes=2\nsrun echo trained\n";
  Type({"cadre token new cluster.token", ""});
  Type({"cadre server --host 10.0.0.5 --token-file cluster.token",
        "serving at 10.0.0.5",
        {"node1"},
        Until::kForever});
  Type({"cadre agent --server 10.0.0.5 --token-file cluster.token --user root --cpus 2",
        "is in the cluster",
        {"node2", "node3"},
        Until::kForever});
  // Only root runs this test.
  Type(
      {"cadre token new alice.token --user root --allow-root --token-file cluster.token --server "
       "10.0.0.5",
       "of user root, until"});
  const std::vector<std::string> lines = DocumentedCommands(Page("docs/from_slurm.md"));
  for (const std::string& line : lines) {
    if (!absl::StartsWith(line, "export ")) continue;
    const std::string variables =
        absl::StrReplaceAll(line.substr(strlen("export ")), {{"~/", absl::StrCat(home_, "/")}});
    for (const char* const command : {"sbatch ", "cadre submit "}) {
      for_[command] = absl::StrCat("env ", variables, " ", command);
    }
  }
  const std::vector<Typed> typed = {
      {"cadre slurm install ~/slurm", ""},
      {"sbatch train.sh", "Submitted batch job 1"},
      {"sbatch --nodes=2 --wait --output=hosts.out --wrap 'srun hostname'",
       // The step of the first job has an id too.
       "Submitted batch job "},
      {"cadre submit train.sh", "submitted train-sh as job "}};
  for (const Typed& one : typed) {
    EXPECT_THAT(lines, testing::Contains(one.command));
    Type(one);
  }
  EndAll(running_, kTimeout);
}

TEST_F(DocumentationTest, Watching) {
  for_ = {{"JOB", "watched"},
          {"run --http 127.0.0.1 …", "run --http 127.0.0.1 --standalone train.py"},
          {"server --http 127.0.0.1 …", "server --http 127.0.0.1 --state-dir none"}};
  Type({"cadre server --state-dir none", "serving at", {"node1"}, Until::kForever});
  Type({"cadre run --job-name JOB --rdzv-endpoint 127.0.0.1 train.py", "trained 0 of 1"});
  Follow("docs/watching.md",
         {{"cadre status JOB --watch", "watched"},
          {"cadre dashboard", "http://127.0.0.1:", {"node1"}, Until::kSpoken},
          {"cadre run --http 127.0.0.1 …", "dashboard at http://127.0.0.1:29480"},
          {"cadre server --http 127.0.0.1 …",
           "dashboard at http://127.0.0.1:29480",
           {"node2"},
           Until::kSpoken}});
}

TEST_F(DocumentationTest, WhenSomethingFails) {
  for_ = {{"[JOB]", "failed"}, {"JOB", "failed"}};
  Type({"cadre server --host 127.0.0.1", "serving at", {"node1"}, Until::kForever});
  const std::string fails =
      "cadre run --job-name failed --rdzv-endpoint 127.0.0.1 --log-dir logs sh -c 'echo no sample; "
      "exit 3'";
  EXPECT_EQ(On("node1", fails)->Wait(kTimeout), 3);
  Type({"cadre server --host 10.77.0.1 --port 29401 --token-file job.token",
        "serving at",
        {"node1"},
        Until::kForever});
  for_["head"] = "head:29401";
  std::ofstream(directory_ + "/train.py") << "import os, time\n"
                                             "while not os.path.exists('go'): time.sleep(0.05)\n";
  const auto other = On("node2",
                        "cadre run --adopt-timeout 1m --node-name n2 --rdzv-endpoint head:29401 "
                        "--token-file job.token --nnodes 2 train.py");
  const std::string standalone =
      "cadre run --standalone --adopt-timeout 1m --state-dir state --job-name mnist "
      "--nproc-per-node 2 train.py";
  const std::string adopting =
      "cadre run --adopt-timeout 1m --node-name n1 --rdzv-endpoint head --token-file job.token "
      "--nnodes 2 train.py";
  Follow("docs/when_something_fails.md",
         {{"cadre why", "failed: "},
          {"cadre why JOB", "failed: "},
          {"cadre status [JOB]", "exited with status 3"},
          {"cadre status JOB --watch", "exited with status 3", {"node1"}, Until::kSpoken},
          {"cadre logs JOB --tail 20", "its logs are on node", {"node1"}, Until::kSpoken},
          {"cadre cancel JOB", "has ended", {"node1"}, Until::kSpoken},
          {"cadre timeline JOB", "GENERATION"},
          {"cadre why JOB --log-dir logs", "failed: "},
          {standalone, "2 workers", {"node3"}, Until::kEnd, "generation 1 running"},
          {adopting, "generation 1 running", {"node3"}, Until::kForever}});
  running_.back()->Kill(SIGKILL);
  running_.back()->Wait(kTimeout);
  Type({adopting, "took over 1 worker of generation 1", {"node3"}, Until::kForever});
  std::ofstream(directory_ + "/go");
  EXPECT_EQ(running_.back()->Wait(kTimeout), 0) << OutputOf(*running_.back());
  EXPECT_EQ(other->Wait(kTimeout), 0) << OutputOf(*other);
}

// As the MNIST files are, of so many images.
void WriteDigits(const std::string& directory, const std::string& which, uint8_t images) {
  const std::string pixels(images * 28 * 28, '\x40'), labels(images, '\3');
  const auto number = [](uint8_t value) { return std::string(3, '\0') + static_cast<char>(value); };
  std::ofstream(absl::StrCat(directory, "/", which, "-images-idx3-ubyte"))
      << std::string("\0\0\x08\x03", 4) << number(images) << number(28) << number(28) << pixels;
  std::ofstream(absl::StrCat(directory, "/", which, "-labels-idx1-ubyte"))
      << std::string("\0\0\x08\x01", 4) << number(images) << labels;
}

TEST_F(DocumentationTest, WaysToSynchronise) {
  WriteDigits(directory_, "train", 128);
  WriteDigits(directory_, "t10k", 64);
  for_ = {{"DIRECTORY", directory_}, {"WAY", "topk"}};
  Follow("docs/ways_to_synchronise.md", {{"cadre run --standalone --nproc-per-node 2 mnist_cnn "
                                          "--data-dir DIRECTORY --epochs 3 --sync WAY",
                                          "epoch 3/3"}});
}

TEST_F(DocumentationTest, Elasticity) {
  std::ofstream(directory_ + "/train.py")
      << "import os, time\n"
         "while not os.path.exists('go'): time.sleep(0.05)\n"
         "print('trained', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n";
  const std::string where = "--rdzv-endpoint head --token-file job.token train.py";
  const std::vector<std::string> three = {"node1", "node2", "node3"};
  Follow(
      "docs/elasticity.md",
      {{"cadre run --nnodes 2:4 " + where, "trained 1 of 2", kTwo, Until::kEnd, "formed: 2 nodes"},
       {"cadre run --nnodes 2:4 --set elastic.scale_up=immediately " + where, "trained 2 of 3",
        three, Until::kEnd, "formed: 3 nodes"},
       {"cadre run --nnodes 2 --set spares=1 --max-restarts 3 " + where, "trained 1 of 2", three,
        Until::kEnd, "generation 1 running"}});
}

TEST_F(DocumentationTest, Checkpoints) {
  WriteDigits(directory_, "train", 128);
  WriteDigits(directory_, "t10k", 64);
  for_ = {{"mnist_cnn ", absl::StrCat("mnist_cnn --data-dir ", directory_, " ")}};
  Follow("docs/checkpoints.md",
         {{"cadre run --standalone --nproc-per-node 2 --max-restarts 3 mnist_cnn --checkpoint-dir "
           "checkpoints --fail-rank 1 --fail-epoch 2",
           "resumed from epoch 1"},
          {"cadre run --standalone --nproc-per-node 2 mnist_cnn --checkpoint-dir checkpoints "
           "--epochs 5",
           "resumed from epoch 3"}});
}

TEST_F(DocumentationTest, FromTorchrun) {
  for_ = {
      {" ...", " --rdzv-endpoint head --set rendezvous.settle=0s --token-file job.token train.py"}};
  FollowThose(CommandsInTables(Page("docs/from_torchrun.md")),
              {{"cadre run --standalone --nproc-per-node 4 train.py --epochs 10", "trained 3 of 4"},
               {"cadre run --nnodes 2 --nproc-per-node 8 --rdzv-endpoint head:29400 --token-file "
                "job.token train.py",
                "trained 15 of 16", kTwo},
               {"cadre run --rdzv-backend c10d --rdzv-endpoint localhost:0 --nnodes 1 "
                "--nproc-per-node 2 train.py",
                "trained 1 of 2"},
               {"cadre run --nnodes 1:4 --max-restarts 3 ...", "trained 0 of 1"}});
}

TEST_F(DocumentationTest, Specs) {
  Validates(DocumentedYaml(Page("README.md")));
  Validates(DocumentedYaml(Page("docs/job_spec.md")));
}

}  // namespace
}  // namespace cadre
