// A real etcd of one member, with its data in a directory of the test. One thread.
#ifndef CADRE_TESTS_TESTING_ETCD_PROCESS_H_
#define CADRE_TESTS_TESTING_ETCD_PROCESS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/process.h"

namespace cadre {

class EtcdProcess {
 public:
  // Where /usr/bin/etcd is not there, a test that needs it says so and is skipped.
  static bool IsInstalled();

  // `host`: where it listens. `command` goes before etcd's own, as in {"ip", "netns", "exec",
  // NAME}.
  explicit EtcdProcess(std::string host = "127.0.0.1", std::vector<std::string> command = {});

  // Before the first Start: clients must show a certificate. `directory` holds ca.pem, cert.pem and
  // key.pem, for etcd and its clients alike.
  void UseTls(std::string directory) { tls_dir_ = std::move(directory); }

  // Serves when it returns true; on the same port and with the same data as before, if there was a
  // time before. False comes with a test failure.
  bool Start();
  // SIGKILL, and waits for the end.
  void Kill();
  // SIGSTOP: connections stay, nothing is answered. SIGCONT.
  void Pause();
  void Resume();

  // host:port
  std::string endpoint() const;
  std::string url() const;

 private:
  bool TryStart();
  std::string LogFile() const;

  const std::string host_;
  const std::vector<std::string> command_;
  const std::string directory_;
  std::string tls_dir_;
  int port_ = 0;
  int starts_ = 0;
  bool served_ = false;
  std::unique_ptr<Process> process_;
};

}  // namespace cadre

#endif  // CADRE_TESTS_TESTING_ETCD_PROCESS_H_
