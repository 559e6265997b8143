// How fast the GPU's kernels are, against the bandwidth of its memory measured in the same run by
// a plain copy. Prints a table and writes JSON; says why and ends with 0 where there is no GPU.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker_runtime/cuda/device.h"
#include "worker_runtime/cuda/kernels.h"

namespace cadre {
namespace {

// 256 MiB of float32: more than any cache.
constexpr size_t kCount = size_t{64} << 20;
// A transformer's worth of tensors of one size.
constexpr size_t kParts = 256;
constexpr int kWarmUps = 3;

struct Measured {
  std::string name;
  // What must be read and written at least.
  size_t bytes = 0;
  std::chrono::nanoseconds median;
};

class Bench {
 public:
  static Result<std::unique_ptr<Bench>> Create(int runs) {
    auto bench = std::unique_ptr<Bench>(new Bench(runs));
    ASSIGN_OR_RETURN(bench->stream_, cuda::CudaStream::Create());
    ASSIGN_OR_RETURN(bench->begin_, cuda::CudaEvent::Create());
    ASSIGN_OR_RETURN(bench->end_, cuda::CudaEvent::Create());
    return bench;
  }

  cuda::CudaStreamHandle stream() const { return stream_->handle(); }
  const std::vector<Measured>& results() const { return results_; }

  // The median of `runs`, by the device's clock.
  Status Measure(const std::string& name, size_t bytes, const std::function<Status()>& work) {
    std::vector<std::chrono::nanoseconds> durations;
    for (int i = 0; i < kWarmUps + runs_; ++i) {
      RETURN_IF_ERROR(begin_->Record(stream()));
      RETURN_IF_ERROR(work());
      RETURN_IF_ERROR(end_->Record(stream()));
      RETURN_IF_ERROR(stream_->Synchronize());
      ASSIGN_OR_RETURN(const std::chrono::nanoseconds duration, end_->Since(*begin_));
      if (i >= kWarmUps) durations.push_back(duration);
    }
    std::sort(durations.begin(), durations.end());
    results_.push_back({name, bytes, durations[durations.size() / 2]});
    return OkStatus();
  }

 private:
  explicit Bench(int runs) : runs_(runs) {}

  const int runs_;
  std::unique_ptr<cuda::CudaStream> stream_;
  std::unique_ptr<cuda::CudaEvent> begin_, end_;
  std::vector<Measured> results_;
};

// Memory that all measurements share.
struct Memory {
  std::shared_ptr<void> wide, other, half, indices, chosen, found, scratch;

  Status Allocate() {
    ASSIGN_OR_RETURN(wide, cuda::AllocateOnCudaDevice(kCount * 4));
    ASSIGN_OR_RETURN(other, cuda::AllocateOnCudaDevice(kCount * 4));
    ASSIGN_OR_RETURN(half, cuda::AllocateOnCudaDevice(kCount * 2));
    ASSIGN_OR_RETURN(indices, cuda::AllocateOnCudaDevice(kCount * 4));
    ASSIGN_OR_RETURN(chosen, cuda::AllocateOnCudaDevice(kCount * 4));
    ASSIGN_OR_RETURN(found, cuda::AllocateOnCudaDevice(sizeof(uint64_t)));
    ASSIGN_OR_RETURN(scratch, cuda::AllocateOnCudaDevice(cuda::SelectionScratchBytes(kCount)));
    return OkStatus();
  }

  // Gradients are spread over many magnitudes; a linear congruence is enough.
  Status Fill(cuda::CudaStreamHandle stream) {
    std::vector<float> values(kCount);
    uint32_t state = 1;
    for (float& value : values) {
      state = state * 1664525u + 1013904223u;
      value = (static_cast<float>(state >> 8) / (1 << 23) - 1) * 1e-2f;
    }
    return cuda::CopyToCudaDevice(wide.get(), values.data(), kCount * 4, stream);
  }
};

Status MeasureConversions(Bench* bench, const Memory& memory) {
  const Buffer wide = {memory.wide.get(), kCount, DataType::kFloat32};
  const Buffer half = {memory.half.get(), kCount, DataType::kFloat16};
  const Buffer brain = {memory.half.get(), kCount, DataType::kBfloat16};
  const Buffer other = {memory.other.get(), kCount, DataType::kFloat32};
  const auto convert = [&](const char* name, Buffer from, Buffer to) {
    return bench->Measure(name, kCount * (SizeOf(from.type) + SizeOf(to.type)),
                          [=] { return cuda::ConvertOnGpu(from, to, 0.5f, bench->stream()); });
  };
  RETURN_IF_ERROR(convert("float32 to bfloat16", wide, brain));
  RETURN_IF_ERROR(convert("bfloat16 to float32", brain, other));
  RETURN_IF_ERROR(convert("float32 to float16", wide, half));
  RETURN_IF_ERROR(convert("float16 to float32", half, other));

  std::vector<cuda::BucketPart> parts;
  const size_t each = kCount / kParts;
  for (size_t i = 0; i < kParts; ++i) {
    float* const tensor = static_cast<float*>(wide.data) + i * each;
    parts.push_back({{tensor, each, DataType::kFloat32}, i * each});
  }
  RETURN_IF_ERROR(bench->Measure("pack 256 tensors into float32", kCount * 8, [&] {
    return cuda::PackOnGpu(parts, other, 0.5f, bench->stream());
  }));
  RETURN_IF_ERROR(bench->Measure("pack 256 tensors into float16", kCount * 6, [&] {
    return cuda::PackOnGpu(parts, half, 0.5f, bench->stream());
  }));
  return bench->Measure("unpack and scale float32", kCount * 8,
                        [&] { return cuda::UnpackOnGpu(other, parts, 2.0f, bench->stream()); });
}

Status MeasureSelections(Bench* bench, const Memory& memory) {
  const Buffer wide = {memory.wide.get(), kCount, DataType::kFloat32};
  cuda::Selection selection;
  selection.indices = static_cast<uint32_t*>(memory.indices.get());
  selection.values = static_cast<float*>(memory.chosen.get());
  selection.capacity = kCount;
  selection.found = static_cast<uint64_t*>(memory.found.get());
  RETURN_IF_ERROR(bench->Measure("finite check", kCount * 4, [&] {
    return cuda::FirstNonFiniteOnGpu(wide, selection.found, bench->stream());
  }));
  // Four passes for the digits and two for the result.
  RETURN_IF_ERROR(bench->Measure("top 1% (6 passes)", kCount * 4 * 6, [&] {
    return cuda::SelectTopKOnGpu(wide, kCount / 100, selection, memory.scratch.get(),
                                 bench->stream());
  }));
  return bench->Measure("threshold, 1% (2 passes)", kCount * 4 * 2, [&] {
    return cuda::SelectThresholdOnGpu(wide, 0.99e-2f, selection, memory.scratch.get(),
                                      bench->stream());
  });
}

Status MeasureAll(Bench* bench) {
  Memory memory;
  RETURN_IF_ERROR(memory.Allocate());
  RETURN_IF_ERROR(memory.Fill(bench->stream()));
  RETURN_IF_ERROR(bench->Measure("copy (the bound)", kCount * 8, [&] {
    return cuda::CopyOnCudaDevice(memory.other.get(), memory.wide.get(), kCount * 4,
                                  bench->stream());
  }));
  RETURN_IF_ERROR(MeasureConversions(bench, memory));
  return MeasureSelections(bench, memory);
}

double GigabytesPerSecond(const Measured& result) {
  return static_cast<double>(result.bytes) /
         absl::ToDoubleSeconds(absl::FromChrono(result.median)) / 1e9;
}

void Print(const std::string& device, const std::vector<Measured>& results) {
  std::printf("%s, %zu MiB of float32\n", device.c_str(), kCount * 4 >> 20);
  std::printf("%-32s %12s %10s %10s\n", "", "median us", "GB/s", "of copy");
  const double bound = GigabytesPerSecond(results.front());
  for (const Measured& result : results) {
    std::printf("%-32s %12.1f %10.0f %9.0f%%\n", result.name.c_str(),
                absl::ToDoubleMicroseconds(absl::FromChrono(result.median)),
                GigabytesPerSecond(result), 100 * GigabytesPerSecond(result) / bound);
  }
}

Status Write(const std::string& path, const std::string& device,
             const std::vector<Measured>& results) {
  nlohmann::json json = {{"device", device}, {"elements", kCount}};
  for (const Measured& result : results) {
    json["results"].push_back(
        {{"name", result.name},
         {"median_us", absl::ToDoubleMicroseconds(absl::FromChrono(result.median))},
         {"gigabytes_per_second", GigabytesPerSecond(result)}});
  }
  std::ofstream file(path);
  file << json.dump(2) << "\n";
  if (file.flush()) return OkStatus();
  return UnavailableError(absl::StrCat("cannot write ", path));
}

Status Run(int runs, const std::string& path) {
  const cuda::CudaDeviceScope scope(0);
  RETURN_IF_ERROR(scope.status());
  ASSIGN_OR_RETURN(const std::string device, cuda::DescribeCudaDevice(0));
  ASSIGN_OR_RETURN(const auto bench, Bench::Create(runs));
  RETURN_IF_ERROR(MeasureAll(bench.get()));
  Print(device, bench->results());
  return path.empty() ? OkStatus() : Write(path, device, bench->results());
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  CLI::App app("Measures the GPU's kernels against the bandwidth of its memory.");
  int runs = 20;
  std::string json;
  app.add_option("--runs", runs, "How often each is measured")->check(CLI::Range(1, 10000));
  app.add_option("--json", json, "Where the results are written");
  CLI11_PARSE(app, argc, argv);
  const auto devices = cadre::cuda::CountCudaDevices();
  if (!devices.ok()) {
    std::printf("skipped: %s\n", devices.status().ToString().c_str());
    return 0;
  }
  const cadre::Status status = cadre::Run(runs, json);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
