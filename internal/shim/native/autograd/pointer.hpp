// References to the nodes of autograd's graph: counted in the node from libtorch 2.13 on, beside it before.
#pragma once
#include "../version.hpp"

#include <torch/csrc/autograd/function.h>

#include <utility>

namespace ps {

#if PS_TORCH >= 213

template <class N>
using NodePointer = c10::intrusive_ptr<N>;
// When the last strong reference goes, libtorch calls release_resources; the destructor waits for the last
// weak reference. So a node that is held weakly drops its tensors and edges in release_resources.
template <class N>
using WeakNodePointer = c10::weak_intrusive_ptr<N>;

template <class N, class... Arguments>
NodePointer<N> make_node(Arguments&&... arguments) {
  return c10::make_intrusive<N>(std::forward<Arguments>(arguments)...);
}

inline NodePointer<torch::autograd::Node> pointer_to(torch::autograd::Node& node) { return node.getptr(); }
inline void release_edges(torch::autograd::Node& node) { node.torch::autograd::Node::release_resources(); }

#else

template <class N>
using NodePointer = std::shared_ptr<N>;
template <class N>
using WeakNodePointer = std::weak_ptr<N>;

// deleteNode frees a long chain of nodes without recursion.
template <class N, class... Arguments>
NodePointer<N> make_node(Arguments&&... arguments) {
  return NodePointer<N>(new N(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode);
}

inline NodePointer<torch::autograd::Node> pointer_to(torch::autograd::Node& node) { return node.shared_from_this(); }
inline void release_edges(torch::autograd::Node&) {}

#endif

}  // namespace ps
