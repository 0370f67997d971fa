// A backward that is prepared: what it starts from, and running it. Its two parts are split.cpp's.
#pragma once
#include "../internal.hpp"
#include "pointer.hpp"

namespace ps {

// The root of a backward that owns its gradients. Each goes with the node that uses it; the engine's own root, and whoever called
// it, would hold them all to the end.
struct Start final : torch::autograd::Node {
  explicit Start(torch::autograd::edge_list&& next) : Node(std::move(next)) { add_input_metadata(at::empty({0})); }
  torch::autograd::variable_list grads;  // by edge

  // The backward starts from one more edge.
  void begin(torch::autograd::Edge edge, at::Tensor grad) {
    next_edges_.push_back(std::move(edge));
    grads.push_back(std::move(grad));
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return std::move(grads); }
  void release_resources() {
    grads.clear();
    release_edges(*this);
  }
  std::string name() const override { return "StartBackward"; }
};

using Prepared = NodePointer<Start>;

// Says which operator this thread runs past the dispatcher, for the error of a backward that fails in it. The name lives for ever.
void runs(const char* op);
// Likewise which node, before it runs.
void runs(const torch::autograd::Node& node);

inline uint64_t give(Prepared start) { return reinterpret_cast<uint64_t>(new Prepared(std::move(start))); }
inline Prepared& lent(uint64_t prepared) { return *reinterpret_cast<Prepared*>(prepared); }

}  // namespace ps
