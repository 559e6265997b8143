// A test with a state directory of its own, and ways to damage it.
#ifndef CADRE_RENDEZVOUS_LOG_SQLITE_LOG_FOR_TEST_H_
#define CADRE_RENDEZVOUS_LOG_SQLITE_LOG_FOR_TEST_H_

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "rendezvous/log/sqlite_file.h"
#include "rendezvous/log/sqlite_log.h"

namespace cadre::log {

class SqliteLogRig : public testing::Test {
 protected:
  SqliteLogRig() {
    std::string pattern = testing::TempDir() + "/logXXXXXX";
    root_ = mkdtemp(pattern.data());
    options_.directory = root_ + "/state";
    options_.new_server_id = 77;
    options_.clock = {"boot", 1000000};
  }
  ~SqliteLogRig() override { std::filesystem::remove_all(root_); }

  absl::StatusOr<OpenedLog> Open() { return OpenSqliteLog(options_); }
  std::string File(const std::string& name) const { return options_.directory + "/" + name; }

  static v1::Record Key(const std::string& key, const std::string& value) {
    v1::Record record;
    record.set_job("job");
    record.mutable_key_written()->set_generation(1);
    record.mutable_key_written()->set_key(key);
    record.mutable_key_written()->set_value(value);
    return record;
  }
  // Writes a state with `count` records.
  void Fill(int count, size_t bytes = 10) {
    absl::StatusOr<OpenedLog> opened = Open();
    ASSERT_THAT(opened, IsOk());
    for (int i = 0; i < count; ++i) {
      ASSERT_THAT(opened->log->Append({Key(absl::StrCat(i), std::string(bytes, 'v'))}), IsOk());
    }
  }
  void Overwrite(const std::string& path, int64_t at, char byte) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file.put(byte);
  }
  void Change(const char* sql) {
    const auto file = SqliteFile::Open(File("state.db"), 0);
    ASSERT_THAT(file, IsOk());
    ASSERT_THAT((*file)->Execute(sql), IsOk());
  }

  std::string root_;
  SqliteLogOptions options_;
};

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_SQLITE_LOG_FOR_TEST_H_
