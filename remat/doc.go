// Package remat is the model of rematerialisation, which trains a chain of layers under a limit of
// bytes by recomputing some activations. It knows no tensors: a [Chain] has the costs of each layer, a
// [Plan] is a list of operations, and [Check] replays the operations, to the byte. [Baselines] returns the
// plans of the usual strategies, and [Explain] describes a plan. Package plan finds plans.
//
// # The model
//
// A chain has L layers. Layer i computes x(i+1) from x(i); x(0) is the input. The loss computes
// y(L), the gradient of x(L). The backward of layer i computes y(i), the gradient of x(i), from
// y(i+1). For it a forward with gradients keeps X(i+1), which includes x(i+1). The backward also
// needs x(i), kept by itself or as a part of X(i). The operations (Beaumont et al.,
// "Optimal Re-materialization Strategies for Heterogeneous Chains", ACM TOMS 50(2), 2024: F∅, Fck,
// Fall, B):
//
//	forward i        x(i) -> x(i+1) without gradients; then drops x(i)
//	forward_keep i   x(i) -> x(i+1) without gradients
//	forward_save i   x(i) -> X(i+1)
//	loss             x(L) -> y(L); then drops x(L)
//	backward i       x(i), X(i+1), y(i+1) -> y(i); then drops X(i+1), y(i+1) and x(i)
//
// An x(i) that is a part of X(i) is dropped with X(i), not before. No operation makes a value that is
// already held. In a complete plan the loss runs once, and then backward L-1 down to backward 0, each once.
//
// # Bytes
//
// In the simplest chain each of these values has a block of its own: x(i+1) of Layers[i].Output bytes, X(i+1)
// of Layers[i].Saved, which count x(i+1) too, and y(i+1) of Layers[i].Gradient. An operation holds all
// earlier blocks, its results and its temporaries; it drops blocks when it ends. A backward also makes
// the gradients of the layer's parameters, WeightGradient bytes, which stay to the end. It may free
// some of X(i+1) and y(i+1) before its own peak. The peak is the greatest sum over all operations.
//
// Skip connections, and views, make inputs of several layers share memory. A Carry{From, To, Bytes} in
// Carries says that Bytes of Layers[From].Output (of Input for From = -1) are also a part of every x(i)
// with From+1 <= i <= To. They count once, and stay until the last x(i) is dropped. A Carry of
// GradientCarries is a part of Layers[To-1].Gradient, and of all y(i) with To >= i >= From+1. The
// backward of layer To makes it, or the loss for To = L, and the backward of From uses it.
package remat
