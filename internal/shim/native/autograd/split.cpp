// A backward in two parts (Qi et al., "Zero Bubble Pipeline Parallelism", 2023): first the gradients
// that others wait for, later those of the weights.
//
// The graph is cut at products: nodes that multiply the gradient by a weight, and by what they have
// saved. In the first part another node takes a product's place. It keeps the gradient that has
// come, dy, and has the product compute what goes on to the gates. The product keeps what it has
// saved, x, and only its edges to weights. The second part starts from every dy and so reaches
// nothing but weights.
//
//     in one:  y -> gelu -> product -> gelu -> gate     first:  y -> gelu -> [keeps dy] -> gelu -> gate
//                              |                        later:  dy -> product -> weight
//                            weight
//
// Results have the same bits as in one backward. Each node computes the same, and each has its
// sequence number, by which the engine orders nodes, so gradients arrive and are summed in the same
// order. A weight is summed in one part: if one of its uses has it in the first, all do.
//
// Other nodes than products compute all of their gradients in the first part. The weights of a norm
// or of a sum cost little there, and what they need would take memory.
//
// PyTorch's pipelining runs the first part with keep_graph and captures gradients by hooks. The
// graph then keeps all that it has saved until the second part, and the captured gradients come on
// top; here a node lets go of what it has saved when it has run.
#include "backward.hpp"
#include "dense.hpp"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace ps {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using AnyNode = torch::autograd::Node;
using torch::autograd::variable_list;

bool is_product(const AnyNode& node) {
  static const std::unordered_set<std::string> names{
      "LinearBackward", "LinearBackward0", "Conv2dBackward", "ConvolutionBackward0", "ConvolutionOverrideableBackward0",
      "MmBackward0", "AddmmBackward0", "BmmBackward0", "BaddbmmBackward0", "AddbmmBackward0", "MvBackward0", "AddmvBackward0"};
  return names.count(node.name()) > 0;
}

// Stands before a product in the first part. The product has its edges to the weights back when it has run.
class Before final : public AnyNode {
 public:
  // weights says, by edge of the product, which are for later.
  Before(NodePointer<AnyNode> product, const std::vector<bool>& weights, const Prepared& later)
      : AnyNode(product->sequence_nr(), only(product->next_edges(), weights, false)),
        name_(product->name()),
        product_(std::move(product)),
        later_(later) {
    for (uint32_t i = 0; i < product_->num_inputs(); i++) input_metadata_.emplace_back(product_->input_metadata(i));
    weights_ = only(product_->next_edges(), weights, true);
    product_->next_edges() = next_edges();
  }

  variable_list apply(variable_list&& grads) override {
    TORCH_CHECK(product_ != nullptr, torch::autograd::ERR_BACKWARD_TWICE);
    if (expects_dense(*product_)) make_dense(grads);
    if (auto later = later_.lock()) {
      for (uint32_t i = 0; i < grads.size(); i++) {
        if (grads[i].defined()) later->begin({product_, i}, grads[i]);
      }
    }
    variable_list out = (*product_)(std::move(grads));
    product_->next_edges() = std::move(weights_);
    return out;
  }

  void release_variables() override { product_.reset(); }
  void release_resources() {
    product_.reset();
    weights_.clear();
    release_edges(*this);
  }
  std::string name() const override { return name_; }

 private:
  static edge_list only(edge_list edges, const std::vector<bool>& weights, bool which) {
    for (size_t i = 0; i < edges.size(); i++)
      if (weights[i] != which) edges[i] = Edge();
    return edges;
  }

  const std::string name_;
  NodePointer<AnyNode> product_;
  edge_list weights_;
  const WeakNodePointer<Start> later_;  // it will hold the product, whose x may have this node in its graph
};

using Nodes = std::unordered_set<AnyNode*>;

// The nodes of a graph, each after those that its edges lead to.
std::vector<AnyNode*> nodes_of(AnyNode* root) {
  std::vector<AnyNode*> out;
  std::vector<std::pair<AnyNode*, uint32_t>> path{{root, 0}};
  Nodes seen{root};
  while (!path.empty()) {
    auto& [node, next] = path.back();
    if (next == node->num_outputs()) {
      out.push_back(node);
      path.pop_back();
      continue;
    }
    AnyNode* to = node->next_edge(next++).function.get();
    if (to != nullptr && seen.insert(to).second) path.emplace_back(to, 0);
  }
  return out;
}

// What each part of a backward computes.
class Parts {
 public:
  // wanted are nodes that the first part reaches, beside the gates.
  Parts(Start* start, const Nodes& wanted) : start_(start), all_(nodes_of(start)) {
    for (AnyNode* node : all_) {
      bool leads = wanted.count(node) > 0 || node->name() == "GateBackward";
      for (const Edge& e : node->next_edges()) leads = leads || first_.count(e.function.get()) > 0;
      if (leads) first_.insert(node);
    }
    first_.insert(start);
    for (AnyNode* node : all_)
      if (first_.count(node) > 0) sort(node);
    while (!summed_.empty() && settle()) {
    }
  }

  // Takes the second part out of the graph.
  void cut(const Prepared& later) {
    std::unordered_map<AnyNode*, const Leaving*> leaves;
    for (const Leaving& l : leaving_) leaves[l.from] = &l;
    std::unordered_map<AnyNode*, NodePointer<AnyNode>> before;
    for (AnyNode* node : all_) {  // a node comes after those that it leads to
      for (Edge& e : node->next_edges()) {
        auto found = before.find(e.function.get());
        if (found != before.end()) e.function = found->second;
      }
      auto found = leaves.find(node);
      if (found == leaves.end() || node == start_) continue;
      before[node] = make_node<Before>(pointer_to(*node), found->second->edges, later);
    }
    edge_list edges;
    variable_list grads;
    for (size_t i = 0; i < start_->num_outputs(); i++) {
      if (std::any_of(leaving_.begin(), leaving_.end(), [&](const Leaving& l) { return l.from == start_ && l.edges[i]; })) {
        later->begin(start_->next_edge(i), std::move(start_->grads[i]));
      } else {
        edges.push_back(start_->next_edge(i));
        grads.push_back(std::move(start_->grads[i]));
      }
    }
    start_->next_edges() = std::move(edges);
    start_->grads = std::move(grads);
  }

 private:
  // Edges of a node that are for later, all of them or none.
  struct Leaving {
    AnyNode* from;
    std::vector<bool> edges;
  };

  // Finds what of a node in the first part may be for later.
  void sort(AnyNode* node) {
    Leaving weights{node, std::vector<bool>(node->num_outputs())};
    bool any = false;
    for (uint32_t i = 0; i < node->num_outputs(); i++) {
      AnyNode* to = node->next_edge(i).function.get();
      if (to == nullptr || first_.count(to) > 0) continue;
      if (node == start_) {  // an output that leads to weights only
        leaving_.push_back({node, std::vector<bool>(node->num_outputs())});
        leaving_.back().edges[i] = true;
      } else if (is_product(*node)) {
        any = weights.edges[i] = true;
      } else {
        sum(to);
      }
    }
    if (any) leaving_.push_back(std::move(weights));
  }

  // The first part computes a node that leads to weights only, and all that the node leads to.
  void sum(AnyNode* node) {
    if (summed_.count(node) > 0) return;
    for (AnyNode* n : nodes_of(node)) summed_.insert(n);
  }

  // Keeps in the first part what leads to weights that it sums. Says whether there was any.
  bool settle() {
    const size_t count = leaving_.size();
    for (size_t k = 0; k < leaving_.size();) {
      const Leaving l = leaving_[k];
      bool shared = false;
      for (size_t i = 0; i < l.edges.size() && !shared; i++) {
        if (!l.edges[i]) continue;
        const auto below = nodes_of(l.from->next_edge(i).function.get());
        shared = std::any_of(below.begin(), below.end(), [&](AnyNode* n) { return summed_.count(n) > 0; });
      }
      if (!shared) {
        k++;
        continue;
      }
      for (size_t i = 0; i < l.edges.size(); i++)
        if (l.edges[i]) sum(l.from->next_edge(i).function.get());
      leaving_.erase(leaving_.begin() + k);
    }
    return leaving_.size() < count;
  }

  Start* const start_;
  const std::vector<AnyNode*> all_;
  Nodes first_;   // nodes that lead to what the first part is for
  Nodes summed_;  // nodes beside those, which the first part runs too
  std::vector<Leaving> leaving_;
};

}  // namespace
}  // namespace ps

ps_error* ps_backward_split(const ps_mode* mode, uint64_t prepared, const ps_tensor* first, int32_t n, uint64_t* later) {
  return ps::guarded([&] {
    ps::Enter enter(mode);
    std::vector<ps::NodePointer<torch::autograd::Node>> held;
    ps::Nodes wanted;
    for (int32_t i = 0; i < n; i++) {
      const at::Tensor t = ps::borrow(first[i]);
      TORCH_CHECK(t.is_leaf(), "element ", i, " of the tensors whose gradients come first was computed; want leaves");
      held.push_back(torch::autograd::impl::gradient_edge(t).function);
      wanted.insert(held.back().get());
    }
    auto start = ps::make_node<ps::Start>(torch::autograd::edge_list());
    ps::Parts(ps::lent(prepared).get(), wanted).cut(start);
    *later = ps::give(std::move(start));
  });
}
