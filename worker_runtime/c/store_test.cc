#include <cstring>
#include <string>

#include "base/status_matchers.h"
#include "cadre.h"
#include "worker_runtime/c/borrowed_worker.h"
#include "worker_runtime/c/handles.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::c {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kLongMs = 60000;

class CStoreTest : public ::testing::Test {
 protected:
  // What the key holds; empty for an error.
  std::string Get(const char* key) {
    char value[CADRE_MAX_VALUE_BYTES + 1];
    size_t size = 0;
    EXPECT_EQ(cadre_store_get(&worker_, key, kLongMs, value, sizeof value, &size), CADRE_OK)
        << cadre_last_error();
    return std::string(value, size);
  }

  testing::InProcessWorkers workers_{1};
  cadre_worker worker_ = Borrowed(workers_.worker(0));
};

TEST_F(CStoreTest, ValuesAreBytes) {
  ASSERT_EQ(cadre_store_set(&worker_, "k", "a\0b", 3), CADRE_OK);
  EXPECT_EQ(Get("k"), std::string("a\0b", 3));
  ASSERT_EQ(cadre_store_set(&worker_, "k", nullptr, 0), CADRE_OK);
  EXPECT_EQ(Get("k"), "");
  const std::string largest(CADRE_MAX_VALUE_BYTES, 'x');
  ASSERT_EQ(cadre_store_set(&worker_, "k", largest.data(), largest.size()), CADRE_OK);
  EXPECT_EQ(Get("k"), largest);
}

TEST_F(CStoreTest, ANulFollowsWhereThereIsRoom) {
  ASSERT_EQ(cadre_store_set(&worker_, "k", "abc", 3), CADRE_OK);
  char value[] = "......";
  size_t size = 0;
  ASSERT_EQ(cadre_store_get(&worker_, "k", kLongMs, value, 4, &size), CADRE_OK);
  EXPECT_EQ(memcmp(value, "abc\0..", 6), 0);
  memset(value, '.', 6);
  ASSERT_EQ(cadre_store_get(&worker_, "k", kLongMs, value, 3, &size), CADRE_OK);
  EXPECT_STREQ(value, "abc...");
  EXPECT_EQ(size, 3u);
}

TEST_F(CStoreTest, TooLittleRoom_SaysHowMuchItTakes) {
  ASSERT_EQ(cadre_store_set(&worker_, "k", "abc", 3), CADRE_OK);
  char value[] = "..";
  size_t size = 0;
  EXPECT_EQ(cadre_store_get(&worker_, "k", kLongMs, value, 2, &size), CADRE_OUT_OF_RANGE);
  EXPECT_THAT(cadre_last_error(), AllOf(HasSubstr("\"k\""), HasSubstr("3 bytes")));
  EXPECT_EQ(size, 3u);
  EXPECT_STREQ(value, "..");
  EXPECT_EQ(cadre_store_get(&worker_, "k", kLongMs, nullptr, 0, &size), CADRE_OUT_OF_RANGE);
}

TEST_F(CStoreTest, GetErrors) {
  char value[8];
  size_t size = 7;
  EXPECT_EQ(cadre_store_get(&worker_, "no", 1, value, 8, &size), CADRE_DEADLINE_EXCEEDED);
  EXPECT_EQ(cadre_store_get(&worker_, "no", 0, value, 8, &size), CADRE_NOT_FOUND);
  EXPECT_EQ(cadre_store_get(&worker_, "k", -1, value, 8, &size), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_get(nullptr, "k", 1, value, 8, &size), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_get(&worker_, nullptr, 1, value, 8, &size), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_get(&worker_, "k", 1, nullptr, 8, &size), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_get(&worker_, "k", 1, value, 8, nullptr), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(size, 7u);
}

TEST_F(CStoreTest, SetErrors) {
  const std::string large(CADRE_MAX_VALUE_BYTES + 1, 'x'), long_key(257, 'k');
  EXPECT_EQ(cadre_store_set(nullptr, "k", "v", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_set(&worker_, nullptr, "v", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_set(&worker_, "k", nullptr, 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_set(&worker_, long_key.c_str(), "v", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_set(&worker_, "k", large.data(), large.size()), CADRE_INVALID_ARGUMENT);
  EXPECT_THAT(cadre_last_error(), HasSubstr("65536"));
}

TEST_F(CStoreTest, Add) {
  int64_t sum = 0;
  EXPECT_EQ(cadre_store_add(&worker_, "n", 40, &sum), CADRE_OK);
  EXPECT_EQ(sum, 40);
  EXPECT_EQ(cadre_store_add(&worker_, "n", -50, nullptr), CADRE_OK);
  EXPECT_EQ(Get("n"), "-10");
  ASSERT_EQ(cadre_store_set(&worker_, "word", "x", 1), CADRE_OK);
  EXPECT_EQ(cadre_store_add(&worker_, "word", 1, &sum), CADRE_FAILED_PRECONDITION);
  EXPECT_EQ(sum, 40);
  EXPECT_EQ(cadre_store_add(nullptr, "n", 1, &sum), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_add(&worker_, nullptr, 1, &sum), CADRE_INVALID_ARGUMENT);
}

TEST_F(CStoreTest, CompareAndSet) {
  EXPECT_EQ(cadre_store_compare_and_set(&worker_, "k", nullptr, 0, "a", 1), CADRE_OK);
  EXPECT_EQ(cadre_store_compare_and_set(&worker_, "k", "b", 1, "c", 1), CADRE_FAILED_PRECONDITION);
  EXPECT_EQ(cadre_store_compare_and_set(&worker_, "k", "a", 1, "c", 1), CADRE_OK);
  EXPECT_EQ(Get("k"), "c");
  EXPECT_EQ(cadre_store_compare_and_set(nullptr, "k", "c", 1, "d", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_compare_and_set(&worker_, nullptr, "c", 1, "d", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_compare_and_set(&worker_, "k", nullptr, 1, "d", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_compare_and_set(&worker_, "k", "c", 1, nullptr, 1), CADRE_INVALID_ARGUMENT);
}

TEST_F(CStoreTest, Delete) {
  ASSERT_EQ(cadre_store_set(&worker_, "k", "v", 1), CADRE_OK);
  EXPECT_EQ(cadre_store_delete(&worker_, "k"), CADRE_OK);
  EXPECT_EQ(cadre_store_delete(&worker_, "k"), CADRE_OK) << "it is gone either way";
  size_t size = 0;
  EXPECT_EQ(cadre_store_get(&worker_, "k", 1, nullptr, 0, &size), CADRE_DEADLINE_EXCEEDED);
  EXPECT_EQ(cadre_store_delete(nullptr, "k"), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_delete(&worker_, nullptr), CADRE_INVALID_ARGUMENT);
}

TEST_F(CStoreTest, AGenerationThatIsOverIsAborted) {
  workers_.EndGeneration();
  EXPECT_EQ(cadre_store_set(&worker_, "k", "v", 1), CADRE_ABORTED);
  EXPECT_THAT(cadre_last_error(), HasSubstr("generation 1 is over"));
}

}  // namespace
}  // namespace cadre::c
