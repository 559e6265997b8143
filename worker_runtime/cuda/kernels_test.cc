#include "worker_runtime/cuda/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "worker_runtime/cuda/cpu_kernels.h"

namespace cadre::cuda {
namespace {

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16};
constexpr size_t kCounts[] = {0, 1, 255, 4096, 4097, 1000003};

// Memory here and there with the same elements.
class Both {
 public:
  Both(size_t count, DataType type) : host_(count * SizeOf(type)), count_(count), type_(type) {
    auto memory = AllocateOnCudaDevice(host_.size());
    EXPECT_OK(memory);
    if (memory.ok()) device_ = *std::move(memory);
  }

  // Numbers of all sizes below 1000 * 2^greatest, and the same ones again and again. The greatest
  // of them are infinite in float16.
  void Fill(std::mt19937& random, int greatest = 9) {
    std::vector<float> values(count_);
    for (float& value : values) {
      value = std::ldexp(static_cast<float>(random() % 2001) - 1000,
                         static_cast<int>(random() % 40) - 39 + greatest);
    }
    ASSERT_OK(ConvertOnCpu({values.data(), count_}, host(), 1));
    ASSERT_OK(CopyToCudaDevice(device_.get(), host_.data(), host_.size(), nullptr));
  }

  Buffer host() { return {host_.data(), count_, type_}; }
  Buffer device() { return {device_.get(), count_, type_}; }

  template <typename T>
  std::vector<T> FromDevice() {
    std::vector<T> values(host_.size() / sizeof(T));
    EXPECT_OK(CopyFromCudaDevice(values.data(), device_.get(), values.size() * sizeof(T), nullptr));
    return values;
  }

  void ExpectSame() { EXPECT_TRUE(FromDevice<char>() == host_); }

 private:
  std::vector<char> host_;
  std::shared_ptr<void> device_;
  size_t count_;
  DataType type_;
};

class KernelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto devices = CountCudaDevices();
    if (!devices.ok()) GTEST_SKIP() << devices.status();
    char byte = 0;
    if (ConvertOnGpu({&byte, 0}, {&byte, 0}, 1, nullptr).code() == StatusCode::kUnimplemented) {
      GTEST_SKIP() << "built without nvcc";
    }
  }

  std::mt19937 random_{11};
};

TEST_F(KernelsTest, ConvertLikeTheCpu) {
  for (const DataType from : kTypes) {
    for (const DataType to : kTypes) {
      for (const size_t count : kCounts) {
        Both source(count, from), target(count, to);
        source.Fill(random_);
        ASSERT_OK(ConvertOnCpu(source.host(), target.host(), 0.37f));
        ASSERT_OK(ConvertOnGpu(source.device(), target.device(), 0.37f, nullptr));
        target.ExpectSame();
      }
    }
  }
}

TEST_F(KernelsTest, PackAndUnpackLikeTheCpu) {
  for (const DataType type : kTypes) {
    // More parts than a launch takes, of very different sizes.
    std::vector<Both> tensors;
    std::vector<BucketPart> host_parts, device_parts;
    size_t total = 0;
    tensors.reserve(300);
    for (int i = 0; i < 300; ++i) {
      const size_t count = i % 7 == 0 ? 0 : i % 11 == 0 ? 300000 : random_() % 3000;
      tensors.emplace_back(count, DataType::kFloat32);
      tensors.back().Fill(random_);
      host_parts.push_back({tensors.back().host(), total});
      device_parts.push_back({tensors.back().device(), total});
      total += count;
    }
    Both bucket(total, type);
    ASSERT_OK(PackOnCpu(host_parts, bucket.host(), 0.25f));
    ASSERT_OK(PackOnGpu(device_parts, bucket.device(), 0.25f, nullptr));
    bucket.ExpectSame();
    ASSERT_OK(UnpackOnCpu(bucket.host(), host_parts, 3));
    ASSERT_OK(UnpackOnGpu(bucket.device(), device_parts, 3, nullptr));
    for (Both& tensor : tensors) tensor.ExpectSame();
  }
}

TEST_F(KernelsTest, FindWhatIsNotFinite) {
  Both first(1, DataType::kInt64);
  uint64_t* const found = static_cast<uint64_t*>(first.device().data);
  for (const DataType type : kTypes) {
    Both data(1000003, type);
    data.Fill(random_, 6);
    ASSERT_OK(FirstNonFiniteOnGpu(data.device(), found, nullptr));
    EXPECT_EQ(first.FromDevice<uint64_t>()[0], kAllFinite);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const size_t index : {size_t{1000002}, size_t{777777}, size_t{3}, size_t{0}}) {
      const size_t size = SizeOf(type);
      char* const place = static_cast<char*>(data.host().data) + index * size;
      ASSERT_OK(ConvertOnCpu({const_cast<float*>(&nan), 1}, {place, 1, type}, 1));
      ASSERT_OK(CopyToCudaDevice(static_cast<char*>(data.device().data) + index * size, place, size,
                                 nullptr));
      ASSERT_OK(FirstNonFiniteOnGpu(data.device(), found, nullptr));
      EXPECT_EQ(first.FromDevice<uint64_t>()[0], index);
    }
  }
}

// Compares the selections of both sides.
struct Chosen {
  explicit Chosen(size_t capacity, size_t count)
      : indices(capacity, DataType::kInt32),
        values(capacity, DataType::kFloat32),
        found(1, DataType::kInt64),
        scratch(SelectionScratchBytes(count), DataType::kUint8),
        capacity(capacity) {}
  Selection Of(Buffer i, Buffer v, Buffer f) {
    return {static_cast<uint32_t*>(i.data), static_cast<float*>(v.data), capacity,
            static_cast<uint64_t*>(f.data)};
  }
  Selection host() { return Of(indices.host(), values.host(), found.host()); }
  Selection device() { return Of(indices.device(), values.device(), found.device()); }
  void ExpectSame() {
    uint64_t on_host = 0;
    memcpy(&on_host, found.host().data, sizeof(on_host));
    ASSERT_EQ(found.FromDevice<uint64_t>()[0], on_host);
    const size_t used = std::min<size_t>(on_host, capacity);
    EXPECT_EQ(memcmp(indices.FromDevice<uint32_t>().data(), indices.host().data, 4 * used), 0);
    EXPECT_EQ(memcmp(values.FromDevice<float>().data(), values.host().data, 4 * used), 0);
  }

  Both indices, values, found, scratch;
  size_t capacity;
};

TEST_F(KernelsTest, SelectTopKLikeTheCpu) {
  for (const size_t count : kCounts) {
    Both data(count, DataType::kFloat32);
    data.Fill(random_);
    for (const size_t k : {size_t{0}, count / 100, (count + 1) / 2, count}) {
      SCOPED_TRACE(absl::StrCat(k, " of ", count));
      Chosen chosen(k, count);
      ASSERT_OK(SelectTopKOnCpu(data.host(), k, chosen.host()));
      ASSERT_OK(SelectTopKOnGpu(data.device(), k, chosen.device(), chosen.scratch.device().data,
                                nullptr));
      chosen.ExpectSame();
    }
  }
}

TEST_F(KernelsTest, SelectThresholdLikeTheCpu) {
  for (const size_t count : kCounts) {
    Both data(count, DataType::kFloat32);
    data.Fill(random_);
    for (const float threshold : {0.0f, 0.01f, 100.0f, 1e30f}) {
      SCOPED_TRACE(absl::StrCat(threshold, " among ", count));
      Chosen chosen(count / 2, count);
      ASSERT_OK(SelectThresholdOnCpu(data.host(), threshold, chosen.host()));
      ASSERT_OK(SelectThresholdOnGpu(data.device(), threshold, chosen.device(),
                                     chosen.scratch.device().data, nullptr));
      chosen.ExpectSame();
    }
  }
}

// These need no GPU: they are refused before one is asked.
TEST(KernelsCheckTest, RefuseBeforeTheyStart) {
  std::vector<float> values(4);
  const Buffer buffer = {values.data(), values.size()};
  const Status status = ConvertOnGpu(buffer, {values.data(), 3}, 1, nullptr);
  if (status.code() == StatusCode::kUnimplemented) GTEST_SKIP() << status;
  EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(PackOnGpu({{buffer, 1}}, buffer, 1, nullptr), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(SelectTopKOnGpu(buffer, 1, {}, nullptr, nullptr),
              StatusIs(StatusCode::kInvalidArgument));
  if (!CountCudaDevices().ok()) {
    EXPECT_THAT(
        ConvertOnGpu(buffer, buffer, 1, nullptr),
        StatusIs(StatusCode::kFailedPrecondition, ::testing::HasSubstr("converting elements: ")));
  }
}

}  // namespace
}  // namespace cadre::cuda
