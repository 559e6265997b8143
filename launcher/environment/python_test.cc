#include "launcher/environment/python.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using Environment = std::map<std::string, std::string>;

class PythonTest : public testing::Test {
 protected:
  void Make(const char* file) {
    std::filesystem::create_directories((folder_ / file).parent_path());
    std::ofstream((folder_ / file).string()) << "";
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) /
      testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::filesystem::path program_ = folder_ / "bin" / "cadre";
};

TEST_F(PythonTest, ThatOfTheEnvironmentWhereTheCommandIs) {
  Make("bin/python3");
  Make("pyvenv.cfg");
  EXPECT_EQ(PythonFor({}, program_), (folder_ / "bin" / "python3").string());
}

TEST_F(PythonTest, ThatOfAnActiveEnvironmentComesFromPath) {
  Make("bin/python3");
  Make("pyvenv.cfg");
  EXPECT_EQ(PythonFor({{"VIRTUAL_ENV", "/other"}}, program_), "") << "it has no interpreter";
  EXPECT_EQ(PythonFor({{"VIRTUAL_ENV", folder_}}, "/usr/bin/cadre"),
            (folder_ / "bin" / "python3").string());
  EXPECT_EQ(PythonFor({{"CONDA_PREFIX", "/other"}}, program_), "");
}

TEST_F(PythonTest, AnyOtherFolderIsNoEnvironment) {
  Make("bin/python3");
  EXPECT_EQ(PythonFor({}, program_), "");
}

TEST_F(PythonTest, ThatWhichTheUserNames) {
  Make("bin/python3");
  Make("pyvenv.cfg");
  EXPECT_EQ(PythonFor({{"PYTHON_EXEC", "python3.9"}}, program_), "python3.9");
}

}  // namespace
}  // namespace cadre::launcher
