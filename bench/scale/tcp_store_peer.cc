// The peer: PyTorch's TCPStore, driven from C++ as fast as it goes.
//
//   tcp_store_peer serve                          prints "serving at PORT", serves until killed
//   tcp_store_peer load PORT CLIENTS SECONDS      sets and gets, prints figures as JSON
//   tcp_store_peer join PORT CLIENTS              all connect and meet in a barrier, likewise
//   tcp_store_peer join_asking PORT CLIENTS       the same, as init_process_group of PyTorch 1.13
//
// A client is a TCPStore of its own with a thread that uses it.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Stores = std::vector<std::unique_ptr<c10d::TCPStore>>;

constexpr int kKeysPerClient = 4;
constexpr std::chrono::milliseconds kTimeout{120000};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::unique_ptr<c10d::TCPStore> Connect(int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = kTimeout;
  return std::make_unique<c10d::TCPStore>("127.0.0.1", options);
}

int Serve() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  c10d::TCPStore store("127.0.0.1", options);
  std::printf("serving at %d\n", store.getPort());
  std::fflush(stdout);
  for (;;) pause();
}

void OnAll(size_t count, const std::function<void(size_t)>& run) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back(run, i);
  for (std::thread& thread : threads) thread.join();
}

std::string KeyOf(size_t client, int64_t number) {
  return "client" + std::to_string(client) + "/" + std::to_string(number % kKeysPerClient);
}

// `use(client, number)` until the time is over; operations each second. With `settle` the time goes
// on until the server has seen all.
double Rate(Stores& stores, double span, bool settle,
            const std::function<void(size_t, int64_t)>& use) {
  std::atomic<int64_t> done{0};
  const Clock::time_point start = Clock::now();
  std::atomic<int64_t> issued_us{0};
  OnAll(stores.size(), [&](size_t client) {
    int64_t number = 0;
    for (; SecondsSince(start) < span || number < kKeysPerClient; ++number) use(client, number);
    done += number;
    const int64_t us = static_cast<int64_t>(SecondsSince(start) * 1e6);
    for (int64_t seen = issued_us; seen < us && !issued_us.compare_exchange_weak(seen, us);) {
    }
    // The server works off each connection in order, so this answer comes behind all that was said.
    if (settle) stores[client]->check({KeyOf(client, 0)});
  });
  const double seconds = settle ? SecondsSince(start) : static_cast<double>(issued_us) / 1e6;
  return static_cast<double>(done) / seconds;
}

int Load(int port, size_t clients, double span) {
  Stores stores(clients);
  OnAll(clients, [&](size_t i) { stores[i] = Connect(port); });
  const std::vector<uint8_t> value(16, 'v');
  const auto set = [&](size_t client, int64_t number) {
    stores[client]->set(KeyOf(client, number), value);
  };
  const double handed_over = Rate(stores, span, false, set);
  OnAll(clients, [&](size_t i) { stores[i]->check({KeyOf(i, 0)}); });
  const double set_rate = Rate(stores, span, true, set);
  const double get_rate = Rate(stores, span, false, [&](size_t client, int64_t number) {
    stores[client]->get(KeyOf(client, number));
  });
  const double add_rate = Rate(stores, span, false, [&](size_t client, int64_t) {
    stores[client]->add("count" + std::to_string(client), 1);
  });
  std::printf(
      "{\"set_handed_over_per_s\": %.1f, \"set_not_awaited_per_s\": %.1f, \"get_per_s\": %.1f, "
      "\"add_per_s\": %.1f}\n",
      handed_over, set_rate, get_rate, add_rate);
  std::fflush(stdout);
  // Closing many connections at once may take the server minutes.
  _exit(0);
}

// As the constructor with wait_for_workers and torchelastic's barrier do: the last one sets what
// the others wait for.
void MeetWaiting(c10d::TCPStore& store, int64_t clients) {
  if (store.add("barrier/count", 1) == clients) store.set("barrier/last", {1});
  store.get("barrier/last");
}

// As init_process_group does (_store_based_barrier in distributed_c10d.py).
void MeetAsking(c10d::TCPStore& store, int64_t clients) {
  store.add("barrier/count", 1);
  while (store.add("barrier/count", 0) != clients) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

int Join(int port, size_t clients, void (*meet)(c10d::TCPStore&, int64_t)) {
  Stores stores(clients);
  const Clock::time_point start = Clock::now();
  OnAll(clients, [&](size_t i) {
    stores[i] = Connect(port);
    meet(*stores[i], static_cast<int64_t>(clients));
  });
  std::printf("{\"ranks\": %zu, \"ms\": %.1f}\n", clients, SecondsSince(start) * 1000);
  std::fflush(stdout);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "serve" && argc == 2) return Serve();
    if (what == "load" && argc == 5) {
      return Load(std::atoi(argv[2]), std::strtoul(argv[3], nullptr, 10), std::atof(argv[4]));
    }
    if ((what == "join" || what == "join_asking") && argc == 4) {
      return Join(std::atoi(argv[2]), std::strtoul(argv[3], nullptr, 10),
                  what == "join" ? MeetWaiting : MeetAsking);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tcp_store_peer: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr,
               "usage: tcp_store_peer serve | load PORT CLIENTS SECONDS | join PORT CLIENTS | "
               "join_asking PORT CLIENTS\n");
  return 64;
}
