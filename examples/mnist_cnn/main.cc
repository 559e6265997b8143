// mnist_cnn: see README.md.

#include <cstdio>
#include <string>

#include "../exceptions/exceptions.h"
#include "../flags/flags.h"
#include "CLI/CLI.hpp"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/worker.h"
#include "train.h"

namespace {

constexpr int kFailed = 1;

int Fail(const std::string& who, const cadre::Status& status) {
  std::fprintf(stderr, "mnist_cnn: %s%s\n", who.c_str(), status.ToString().c_str());
  return kFailed;
}

// The short names and --dist_option are those of SINGA's programs.
void AddSynchronizationFlags(CLI::App& app, cadre::mnist::TrainOptions& options) {
  CLI::Option* const sync =
      app.add_option("--sync", options.sync,
                     "how gradients are synchronized: in full (fp32), in 16 bits (fp16, bf16), one "
                     "group of parameters after the other (partial), the largest twentieth (topk), "
                     "or those from 0.05 (threshold)")
          ->check(CLI::IsMember({"fp32", "fp16", "bf16", "partial", "topk", "threshold"}))
          ->capture_default_str();
  app.add_option("-d,--dist_option,--dist-option", options.dist_option,
                 "likewise, by an optimizer that is wrapped for distribution, as SINGA's DistOpt")
      ->check(CLI::IsMember(
          {"plain", "fp32", "half", "fp16", "partialUpdate", "sparseTopK", "sparseThreshold"}))
      ->excludes(sync);
  app.add_option("-s,--spars,--sparsification", options.sparsity,
                 "of the sparse ways: the share that is sent, or the least magnitude")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

void AddFlags(CLI::App& app, cadre::mnist::TrainOptions& options) {
  AddSynchronizationFlags(app, options);
  app.add_option("--data-dir", options.data_dir,
                 "directory with MNIST's IDX files, plain or .gz; default: digits drawn here");
  app.add_option("--checkpoint-dir", options.checkpoint_dir,
                 "shared directory; the training resumes from what it finds there");
  app.add_option("--device", options.device, "default: cuda where there is a GPU, else cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("-m,--epochs,--max-epoch", options.epochs)
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("-b,--batch-size", options.batch_size, "of each rank")
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("-l,--lr,--learning-rate", options.learning_rate, "learning rate")
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("--momentum", options.momentum)
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("--weight-decay", options.weight_decay)
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_option("--limit", options.limit, "use only so many training images; 0: all")
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("--threads", options.threads, "of libtorch; 0: one if there are several ranks")
      ->check(cadre::flags::NotNegative())
      ->capture_default_str();
  app.add_option("--log-every", options.log_every, "steps between two lines")
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("--timeout", options.timeout_seconds, "seconds that ranks wait for each other")
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("--ledger", options.ledger_dir,
                 "directory: each process writes there who took which samples in which step");
  app.add_option("--fail-rank", options.fail_rank,
                 "demonstration: this rank kills itself once, in --fail-epoch");
  app.add_option("--fail-epoch", options.fail_epoch)->capture_default_str();
}

}  // namespace

int main(int argc, char** argv) {
  // Line buffering writes whole lines at once, although the output is a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cadre::mnist::TrainOptions options;
  CLI::App app("Trains a small convolutional network on digits, on all workers of a Cadre job.");
  AddFlags(app, options);
  if (const auto status = cadre::flags::Parse(app, argc, argv)) return *status;

  auto worker = cadre::Worker::Connect();
  if (!worker.ok()) return Fail("", worker.status());
  const std::string who = "rank " + std::to_string((*worker)->rank()) + ": ";
  const cadre::Result<int> status =
      cadre::WithoutExceptions([&] { return cadre::mnist::Train(**worker, options); });
  return status.ok() ? *status : Fail(who, status.status());
}
