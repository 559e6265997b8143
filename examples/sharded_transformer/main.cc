// sharded_transformer: see README.md.

#include <cstdio>
#include <string>

#include "../exceptions/exceptions.h"
#include "../flags/flags.h"
#include "CLI/CLI.hpp"
#include "cadre/connect.h"
#include "cadre/status.h"
#include "cadre/status_macros.h"
#include "train.h"

namespace cadre::transformer {
namespace {

void AddFlags(CLI::App& app, TrainOptions& options) {
  using flags::NotNegative;
  using flags::Positive;
  app.add_option("--strategy", options.strategy,
                 "what each rank has a share of only: nothing (ddp), the optimizer's state (oss), "
                 "gradients, too (sharded), parameters, too (fsdp), or that within a node (hybrid)")
      ->check(CLI::IsMember({"ddp", "oss", "sharded", "fsdp", "hybrid"}))
      ->capture_default_str();
  app.add_option("--steps", options.steps)->check(Positive())->capture_default_str();
  app.add_option("-b,--batch", options.batch, "sequences in a step, of all ranks together")
      ->check(Positive())
      ->capture_default_str();
  app.add_option("--layers", options.shape.layers)->check(Positive())->capture_default_str();
  app.add_option("--width", options.shape.width)->check(Positive())->capture_default_str();
  app.add_option("--heads", options.shape.heads, "divides the width")
      ->check(Positive())
      ->capture_default_str();
  app.add_option("--context", options.shape.context, "bytes that the model sees at once")
      ->check(Positive())
      ->capture_default_str();
  app.add_option("--lr", options.learning_rate, "AdamW's learning rate")
      ->check(NotNegative())
      ->capture_default_str();
  app.add_option("--max-norm", options.max_norm, "of all gradients together")
      ->check(Positive())
      ->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_option("--text", options.text_file, "a file to learn; default: seven sonnets");
  app.add_option("--device", options.device, "default: cuda where there is a GPU, else cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--precision", options.precision,
                 "what operators compute in, where that is safe; float16 scales the loss")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->capture_default_str();
  app.add_option("--loss-scale", options.loss_scale,
                 "of float16, at first; it falls where a gradient overflows")
      ->check(Positive())
      ->capture_default_str();
  app.add_flag("--checkpoint-activations", options.shape.checkpoint_activations,
               "compute what a block does again in the backward pass, in place of keeping it");
  app.add_option("--checkpoint-dir", options.checkpoint_dir,
                 "shared directory; the training resumes from what it finds there, also with "
                 "another strategy or number of ranks");
  app.add_option("--save-every", options.save_every, "steps")
      ->check(Positive())
      ->capture_default_str();
  app.add_option("--log-every", options.log_every, "steps")
      ->check(Positive())
      ->capture_default_str();
  app.add_option("--prompt", options.prompt,
                 "beginning of the text that the model writes at the end")
      ->capture_default_str();
  app.add_option("--write", options.write, "bytes that the model writes at the end")
      ->check(NotNegative())
      ->capture_default_str();
  app.add_option("--fail-rank", options.fail_rank,
                 "demonstration: this rank kills itself once, before --fail-step");
  app.add_option("--fail-step", options.fail_step)->capture_default_str();
}

Status Run(const TrainOptions& options) {
  if (options.shape.width % options.shape.heads != 0) {
    return InvalidArgumentError("--width " + std::to_string(options.shape.width) +
                                " is no multiple of --heads " +
                                std::to_string(options.shape.heads));
  }
  if (options.prompt.empty()) return InvalidArgumentError("--prompt is empty");
  CADRE_ASSIGN_OR_RETURN(const World world, Connect());
  return WithoutExceptions([&] { return Train(world, options); });
}

}  // namespace
}  // namespace cadre::transformer

int main(int argc, char** argv) {
  // Line buffering writes whole lines at once, although the output is a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cadre::transformer::TrainOptions options;
  CLI::App app("Trains a small transformer on text, its state spread over the workers of a job.");
  cadre::transformer::AddFlags(app, options);
  if (const auto status = cadre::flags::Parse(app, argc, argv)) return *status;
  const cadre::Status status = cadre::transformer::Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "sharded_transformer: %s\n", status.ToString().c_str());
  return 1;
}
