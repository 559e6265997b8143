#include "launcher/attach/embedded_link.h"

#include <condition_variable>
#include <mutex>
#include <vector>

#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

// Collects what the link says and waits for it.
struct Heard {
  std::mutex mutex;
  std::condition_variable changed;
  int ups = 0;
  std::vector<v1::ServerMessage> messages;
  std::vector<absl::Status> downs;

  agent::LinkCallbacks Callbacks() {
    agent::LinkCallbacks callbacks;
    callbacks.on_up = [this](uint64_t) {
      std::lock_guard<std::mutex> lock(mutex);
      ++ups;
    };
    callbacks.on_message = [this](v1::ServerMessage message) {
      std::lock_guard<std::mutex> lock(mutex);
      messages.push_back(std::move(message));
      changed.notify_all();
    };
    callbacks.on_down = [this](absl::Status status) {
      std::lock_guard<std::mutex> lock(mutex);
      downs.push_back(std::move(status));
      changed.notify_all();
    };
    return callbacks;
  }
  template <typename Done>
  bool WaitFor(Done done) {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(10), [&] { return done(*this); });
  }
};

v1::NodeMessage Join() {
  v1::NodeMessage message;
  message.set_job("a");
  message.set_incarnation(7);
  v1::Join& join = *message.mutable_join();
  join.set_node("n0");
  join.set_host("n0");
  join.set_address("127.0.0.1");
  join.set_slots(1);
  join.set_wanted_node_rank(-1);
  join.set_held_port(1234);
  v1::JobSpec& spec = *join.mutable_spec();
  spec.set_name("a");
  spec.add_command("x");
  spec.mutable_nodes()->set_min(1);
  spec.mutable_nodes()->set_max(1);
  return message;
}

TEST(EmbeddedLinkTest, Join_IsWelcomedAndAssigned) {
  host::CoreThread core(host::NewCoreConfig());
  Heard heard;
  auto link = MakeEmbeddedLink(core);
  link->Start(heard.Callbacks());
  EXPECT_EQ(heard.ups, 1);
  link->Send(1, Join());
  EXPECT_TRUE(heard.WaitFor([](Heard& h) {
    for (const v1::ServerMessage& message : h.messages) {
      if (message.has_assign()) return true;
    }
    return false;
  }));
  EXPECT_TRUE(heard.messages.front().has_welcome());
  link->Stop();
}

TEST(EmbeddedLinkTest, AfterStop_NothingIsHeard) {
  host::CoreThread core(host::NewCoreConfig());
  Heard heard;
  auto link = MakeEmbeddedLink(core);
  link->Start(heard.Callbacks());
  link->Stop();
  const size_t before = heard.messages.size();
  link->Send(1, Join());
  EXPECT_TRUE(core.AllStatuses().ok());  // returns after whatever was posted before it
  EXPECT_EQ(heard.messages.size(), before);
  EXPECT_TRUE(heard.downs.empty());
}

TEST(EmbeddedLinkTest, CoreEnds_LinkGoesDown) {
  Heard heard;
  auto core = std::make_unique<host::CoreThread>(host::NewCoreConfig());
  auto link = MakeEmbeddedLink(*core);
  link->Start(heard.Callbacks());
  v1::NodeMessage renew;
  renew.set_job("a");
  renew.mutable_renew();
  // The stream's first message must be a Join: the core closes it.
  link->Send(1, renew);
  EXPECT_TRUE(heard.WaitFor([](Heard& h) { return !h.downs.empty(); }));
  link->Stop();
}

}  // namespace
}  // namespace cadre::launcher
