#include <dlfcn.h>
#include <stdlib.h>

#include "base/status_matchers.h"
#include "worker_runtime/cuda/cuda_api.h"

namespace cadre::cuda {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kVariable[] = "CADRE_VENDOR_LIBRARY_TEST";

// The names are those of a library that no process has and of one that every process has.
const VendorLibrary kMissing = {"The library", kVariable, {"libcadre_nowhere.so.1"}};
const VendorLibrary kLoaded = {"The library", kVariable, {"libcadre_nowhere.so.1", "libc.so.6"}};

TEST(PathsOfTest, LooksWhereItUsuallyIs) {
  const VendorLibrary library = {"CUDA's runtime", kVariable, {"a.so.2", "a.so.1"}};
  EXPECT_THAT(PathsOf(library, nullptr, nullptr),
              ElementsAre("a.so.2", "a.so.1", "/usr/local/cuda/lib64/a.so.2",
                          "/usr/local/cuda/lib64/a.so.1"));
  EXPECT_THAT(PathsOf(library, "", "/opt/cuda"),
              ElementsAre("a.so.2", "a.so.1", "/opt/cuda/lib64/a.so.2", "/opt/cuda/lib64/a.so.1",
                          "/opt/cuda/lib/a.so.2", "/opt/cuda/lib/a.so.1",
                          "/usr/local/cuda/lib64/a.so.2", "/usr/local/cuda/lib64/a.so.1"));
  EXPECT_THAT(PathsOf(library, "/mine/a.so", "/opt/cuda"), ElementsAre("/mine/a.so"));
}

TEST(OpenVendorLibraryTest, TakesWhatIsLoadedAlready) {
  unsetenv(kVariable);
  const auto opened = OpenVendorLibrary(kLoaded);
  ASSERT_OK(opened);
  EXPECT_EQ(*opened, dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD));
}

TEST(OpenVendorLibraryTest, TakesNothingButWhatTheVariableNames) {
  setenv(kVariable, "/nowhere/a.so", 1);
  EXPECT_THAT(OpenVendorLibrary(kLoaded),
              StatusIs(StatusCode::kNotFound,
                       AllOf(HasSubstr("The library was not found as /nowhere/a.so ("),
                             HasSubstr("install it or name it in CADRE_VENDOR_LIBRARY_TEST"))));
  setenv(kVariable, "libc.so.6", 1);
  EXPECT_OK(OpenVendorLibrary(kMissing));
  unsetenv(kVariable);
}

TEST(OpenVendorLibraryTest, SaysWhereItLooked) {
  unsetenv(kVariable);
  EXPECT_THAT(OpenVendorLibrary(kMissing),
              StatusIs(StatusCode::kNotFound, HasSubstr("libcadre_nowhere.so.1, ")));
}

}  // namespace
}  // namespace cadre::cuda
