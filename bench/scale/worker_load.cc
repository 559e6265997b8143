// A worker of a job, run by `cadre run`: it and its siblings are clients of the store through their
// agent, as training programs are, several each.
//
//   worker_load CLIENTS_OF_EACH SECONDS FILE
//
// Each client has a connection of its own and a thread that sets, and then gets, one by one. Rank 0
// writes the figures to FILE as JSON.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "cadre/worker.h"
#include "nlohmann/json.hpp"

namespace cadre {
namespace {

constexpr std::chrono::nanoseconds kTimeout = std::chrono::minutes(1);
constexpr int kKeysPerClient = 4;
// Both in thousandths of an operation per second, because the store adds whole numbers.
constexpr double kRateUnit = 1000;

using Clients = std::vector<std::unique_ptr<Worker>>;

std::string KeyOf(int rank, size_t client, int64_t number) {
  return absl::StrCat("rank", rank, "/", client, "/", number % kKeysPerClient);
}

// Operations each second of all clients of this process.
Result<double> Run(const Clients& clients, absl::Duration span, bool set) {
  std::atomic<int64_t> done{0};
  std::vector<Status> ended(clients.size());
  std::vector<std::thread> threads;
  const MonoTime start = MonoNow();
  const MonoTime end = start + span;
  for (size_t i = 0; i < clients.size(); ++i) {
    threads.emplace_back([&, i] {
      Worker& worker = *clients[i];
      for (int64_t number = 0; ended[i].ok() && (MonoNow() < end || number < kKeysPerClient);
           ++number) {
        const std::string key = KeyOf(worker.rank(), i, number);
        ended[i] = set ? worker.Set(key, "0123456789abcdef") : worker.Get(key, kTimeout).status();
        ++done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : ended) RETURN_IF_ERROR(status);
  return static_cast<double>(done) / absl::ToDoubleSeconds(MonoNow() - start);
}

Status Measure(size_t count, absl::Duration span, const std::string& path) {
  Clients clients;
  for (size_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(auto client, Worker::Connect());
    clients.push_back(std::move(client));
  }
  Worker& worker = *clients[0];
  nlohmann::json figures;
  for (const bool set : {true, false}) {
    const std::string name = set ? "set_per_s" : "get_per_s";
    RETURN_IF_ERROR(worker.Barrier(absl::StrCat(name, "/begin"), kTimeout));
    ASSIGN_OR_RETURN(const double rate, Run(clients, span, set));
    RETURN_IF_ERROR(worker.Add(name, static_cast<int64_t>(rate * kRateUnit)).status());
    RETURN_IF_ERROR(worker.Barrier(absl::StrCat(name, "/end"), kTimeout));
    ASSIGN_OR_RETURN(const int64_t total, worker.Add(name, 0));
    figures[name] = static_cast<double>(total) / kRateUnit;
  }
  if (worker.rank() != 0) return OkStatus();
  std::ofstream file(path);
  file << figures.dump() << "\n";
  file.close();
  return file ? OkStatus() : UnavailableError(absl::StrCat("cannot write ", path));
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  uint32_t clients = 0, seconds = 0;
  if (argc != 4 || !absl::SimpleAtoi(argv[1], &clients) || clients == 0 ||
      !absl::SimpleAtoi(argv[2], &seconds)) {
    std::fprintf(stderr, "usage: worker_load CLIENTS_OF_EACH SECONDS FILE\n");
    return 64;
  }
  const cadre::Status status = cadre::Measure(clients, absl::Seconds(seconds), argv[3]);
  if (!status.ok()) std::fprintf(stderr, "worker_load: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
