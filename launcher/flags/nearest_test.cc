#include "launcher/flags/nearest.h"

#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

TEST(NearestTest, OneLetterAway_IsFound) {
  EXPECT_EQ(Nearest("comand", {"name", "command", "nodes"}), "command");
  EXPECT_EQ(Nearest("nnode", {"nnodes", "node-rank"}), "nnodes");
  EXPECT_EQ(Nearest("ndoes", {"nnodes", "node-rank"}), "nnodes");
}

TEST(NearestTest, SwappedLetters_CountOnce) { EXPECT_EQ(Nearest("evn", {"env", "on"}), "env"); }

TEST(NearestTest, NothingClose_IsEmpty) {
  EXPECT_EQ(Nearest("zebra", {"name", "command"}), "");
  EXPECT_EQ(Nearest("log-dir", {"tls-dir"}), "");
  EXPECT_EQ(Nearest("x", {}), "");
  EXPECT_EQ(Nearest(std::string(1000, 'a'), {"a"}), "");
}

}  // namespace
}  // namespace cadre::launcher
