#include "text.h"

#include <fstream>
#include <iterator>
#include <random>
#include <set>

#include "cadre/status_macros.h"
#include "sonnets.h"
#include "torch/utils.h"

namespace cadre::transformer {

Result<Text> Text::Load(const std::string& path, int64_t context) {
  std::string text = kSonnets;
  if (!path.empty()) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return NotFoundError("cannot read the text " + path);
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  if (static_cast<int64_t>(text.size()) <= context) {
    return InvalidArgumentError((path.empty() ? "the text" : path) + " has " +
                                std::to_string(text.size()) + " bytes; a sequence needs " +
                                std::to_string(context + 1));
  }
  return Text(text, context);
}

Text::Text(const std::string& text, int64_t context) : context_(context) {
  const std::set<char> known(text.begin(), text.end());
  bytes_.assign(known.begin(), known.end());
  ids_ = *Encode(text);
}

Result<torch::Tensor> Text::Encode(const std::string& text) const {
  torch::Tensor ids = torch::empty({static_cast<int64_t>(text.size())}, torch::kInt64);
  auto* const to = ids.data_ptr<int64_t>();
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t id = bytes_.find(text[i]);
    if (id == std::string::npos) {
      return InvalidArgumentError("byte " + std::to_string(i + 1) + " of \"" + text +
                                  "\" is not in the text that was learnt");
    }
    to[i] = static_cast<int64_t>(id);
  }
  return ids;
}

Batch Text::Sequences(int64_t step, int64_t first, int64_t count) const {
  std::vector<torch::Tensor> inputs, targets;
  const int64_t places = ids_.numel() - context_;
  for (int64_t i = first; i < first + count; ++i) {
    std::seed_seq seeds = {step, i};
    // The standard defines this generator's numbers, but not those of a distribution.
    std::mt19937_64 random(seeds);
    const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(places));
    inputs.push_back(ids_.narrow(0, begin, context_));
    targets.push_back(ids_.narrow(0, begin + 1, context_));
  }
  return {torch::stack(inputs), torch::stack(targets)};
}

}  // namespace cadre::transformer
