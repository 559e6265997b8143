#include "agent/cluster/gpu_devices.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

namespace fs = std::filesystem;

// What the first rule that fits says, as the kernel's program does.
bool Allowed(const std::vector<supervisor::DeviceRule>& rules, uint32_t major, uint32_t minor) {
  for (const supervisor::DeviceRule& rule : rules) {
    if (rule.major == major && rule.first_minor <= minor && minor <= rule.last_minor) {
      return rule.allowed;
    }
  }
  return true;
}

TEST(GpusToGive, AreThoseFoundAndCalledByTheirUuid) {
  const std::vector<Gpu> found = {{2, "GPU-c", "H", {}, 0}, {3, "", "H", {}, std::nullopt}};
  const auto all = GpusToGive(found, std::nullopt);
  ASSERT_THAT(all, SizeIs(2));
  EXPECT_EQ(all.at(2).name, "GPU-c");
  EXPECT_EQ(all.at(2).minor, 0u) << "the driver counts otherwise";
  EXPECT_EQ(all.at(3).name, "3");
  EXPECT_EQ(all.at(3).minor, 3u);
  const auto one = GpusToGive(found, 1);
  ASSERT_THAT(one, SizeIs(1));
  EXPECT_EQ(one.count(2), 1u);
  const auto more = GpusToGive(found, 4);
  ASSERT_THAT(more, SizeIs(4));
  EXPECT_EQ(more.at(1).name, "1");
  EXPECT_THAT(GpusToGive({}, std::nullopt), IsEmpty());
  EXPECT_THAT(GpusToGive(found, 0), IsEmpty());
}

TEST(DeviceRules, OnlyGrantedGpusAndTheDriversControlNodes) {
  const GpuDevices devices = {{195}, {{226, 128, 0}, {226, 129, 1}}};
  const struct {
    std::set<uint32_t> granted;
    uint32_t major, minor;
    bool allowed;
  } kCases[] = {
      {{1}, 195, 0, false},  {{1}, 195, 1, true},   {{1}, 195, 2, false},  {{1}, 195, 255, true},
      {{1}, 195, 254, true}, {{}, 195, 0, false},   {{}, 195, 255, true},  {{1}, 226, 128, false},
      {{1}, 226, 129, true}, {{}, 226, 129, false}, {{1}, 226, 130, true}, {{1}, 1, 5, true},
      {{1}, 511, 0, true},  // nvidia-uvm
  };
  for (const auto& one : kCases) {
    EXPECT_EQ(Allowed(DeviceRules(one.granted, devices), one.major, one.minor), one.allowed)
        << one.major << ":" << one.minor << " of " << one.granted.size();
  }
}

class FindGpuDevicesTest : public ::testing::Test {
 protected:
  FindGpuDevicesTest() : root_(::testing::TempDir() + "/devices_XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
  }
  ~FindGpuDevicesTest() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // A node of the card at this address.
  void Graphics(const std::string& name, const std::string& numbers,
                const std::string& address) const {
    const std::string card = "/sys/devices/pci0000:00/" + address;
    Write(card + "/drm/" + name + "/dev", numbers);
    fs::create_directory_symlink("../..", root_ + card + "/drm/" + name + "/device");
    fs::create_directories(root_ + "/sys/class/drm");
    fs::create_directory_symlink("../../devices/pci0000:00/" + address + "/drm/" + name,
                                 root_ + "/sys/class/drm/" + name);
  }

  std::string root_;
};

TEST_F(FindGpuDevicesTest, WithoutADriverItsNumberIsKnown) {
  const GpuDevices devices = FindGpuDevices(root_);
  EXPECT_THAT(devices.majors, ElementsAre(195));
  EXPECT_THAT(devices.graphics, IsEmpty());
}

TEST_F(FindGpuDevicesTest, GraphicsNodesAreFoundByTheirCard) {
  Write("/proc/devices",
        "Character devices:\n  1 mem\n195 nvidia\n194 nvidia-frontend\n510 nvidia-uvm\n\n"
        "Block devices:\n  8 nvidia\n");
  Write("/proc/driver/nvidia/gpus/0000:01:00.0/information",
        "Model: \t\t H\nDevice Minor: \t 1\nGPU Excluded:\t No\n");
  Graphics("renderD128", "226:128\n", "0000:00:02.0");
  Graphics("renderD129", "226:129\n", "0000:01:00.0");
  Graphics("card1", "226:1\n", "0000:01:00.0");
  const GpuDevices devices = FindGpuDevices(root_);
  EXPECT_THAT(devices.majors, ElementsAre(194, 195));
  std::map<uint32_t, uint32_t> gpus;
  for (const GraphicsNode& node : devices.graphics) {
    EXPECT_EQ(node.major, 226u);
    gpus[node.minor] = node.gpu_minor;
  }
  EXPECT_THAT(gpus, ElementsAre(Pair(1, 1), Pair(129, 1)));
}

}  // namespace
}  // namespace cadre::agent
