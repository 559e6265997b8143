#include "agent/cluster/gpu_devices.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/supervisor/processes/kernel_files.h"

namespace cadre::agent {
namespace {

namespace fs = std::filesystem;

// Linux' device list assigns this major to NVIDIA, whether the driver is loaded or not.
constexpr uint32_t kNvidiaMajor = 195;
// Minors of nvidia-modeset and nvidiactl; the GPUs' minors are below them.
constexpr uint32_t kFirstControlMinor = 254;
constexpr uint32_t kLastControlMinor = 255;

// Adds the majors that /proc/devices lists for the driver, under either name that its versions use.
void AddMajors(absl::string_view text, std::set<uint32_t>* majors) {
  // Block devices come after the character devices.
  text = text.substr(0, text.find("Block devices:"));
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint32_t major = 0;
    if (words.size() == 2 && (words[1] == "nvidia" || words[1] == "nvidia-frontend") &&
        absl::SimpleAtoi(words[0], &major)) {
      majors->insert(major);
    }
  }
}

std::optional<uint32_t> MinorOf(absl::string_view information) {
  for (absl::string_view line : absl::StrSplit(information, '\n')) {
    uint32_t minor = 0;
    if (absl::ConsumePrefix(&line, "Device Minor:") && absl::SimpleAtoi(line, &minor)) return minor;
  }
  return std::nullopt;
}

// Parses the content of /sys/class/drm/NAME/dev, for example "226:128\n".
std::optional<GraphicsNode> NodeOf(absl::string_view numbers) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(absl::StripAsciiWhitespace(numbers), ':');
  GraphicsNode node;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &node.major) ||
      !absl::SimpleAtoi(parts[1], &node.minor)) {
    return std::nullopt;
  }
  return node;
}

// The minor numbers of /dev/nvidiaN, by PCI address.
std::map<std::string, uint32_t> GpusByAddress(const std::string& root) {
  std::map<std::string, uint32_t> gpus;
  const std::string driver = root + "/proc/driver/nvidia/gpus";
  for (const std::string& address : supervisor::Subdirectories(driver)) {
    const auto minor =
        MinorOf(supervisor::KernelFileText(absl::StrCat(driver, "/", address, "/information")));
    if (minor.has_value()) gpus[address] = *minor;
  }
  return gpus;
}

}  // namespace

std::map<uint32_t, NodeGpu> GpusToGive(const std::vector<Gpu>& found,
                                       std::optional<uint32_t> count) {
  std::map<uint32_t, NodeGpu> gpus;
  const size_t wanted = count.value_or(static_cast<uint32_t>(found.size()));
  for (const Gpu& gpu : found) {
    if (gpus.size() == wanted) break;
    // A job that cannot open the other GPUs may count its own from 0; a UUID is unambiguous.
    gpus[gpu.index] = {gpu.uuid.empty() ? absl::StrCat(gpu.index) : gpu.uuid,
                       gpu.minor.value_or(gpu.index)};
  }
  for (uint32_t index = 0; gpus.size() < wanted; ++index) {
    gpus.emplace(index, NodeGpu{absl::StrCat(index), index});
  }
  return gpus;
}

GpuDevices FindGpuDevices(const std::string& root) {
  GpuDevices devices;
  devices.majors.insert(kNvidiaMajor);
  AddMajors(supervisor::KernelFileText(root + "/proc/devices"), &devices.majors);
  const std::map<std::string, uint32_t> gpus = GpusByAddress(root);
  const std::string drm = root + "/sys/class/drm";
  std::error_code error;
  for (auto entry = fs::directory_iterator(drm, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().string();
    const auto node = NodeOf(supervisor::KernelFileText(name + "/dev"));
    // A card's outputs are listed here too, but are not devices and have no numbers.
    if (!node.has_value()) continue;
    std::error_code ignored;
    const auto gpu = gpus.find(fs::canonical(name + "/device", ignored).filename().string());
    if (gpu == gpus.end()) continue;
    devices.graphics.push_back(*node);
    devices.graphics.back().gpu_minor = gpu->second;
  }
  return devices;
}

std::vector<supervisor::DeviceRule> DeviceRules(const std::set<uint32_t>& granted,
                                                const GpuDevices& devices) {
  std::vector<supervisor::DeviceRule> rules;
  for (const uint32_t major : devices.majors) {
    for (const uint32_t minor : granted) rules.push_back({major, minor, minor, true});
    rules.push_back({major, kFirstControlMinor, kLastControlMinor, true});
    rules.push_back({major, 0, UINT32_MAX, false});
  }
  for (const GraphicsNode& node : devices.graphics) {
    if (granted.count(node.gpu_minor) != 0) continue;
    rules.push_back({node.major, node.minor, node.minor, false});
  }
  return rules;
}

}  // namespace cadre::agent
