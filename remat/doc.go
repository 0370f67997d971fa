// Package remat is the model of rematerialisation: what to keep and what to compute again, so that
// training a chain of layers stays under a number of bytes. It knows no tensors: a [Chain] says
// what each layer costs, a [Plan] is a list of operations, and [Check] replays one, to the byte.
//
// Package solver finds plans, planfile reads and writes chains and plans, baselines has the plans
// of the usual strategies and compares, explain explains and draws.
//
// # The model
//
// A chain has L layers. Layer i computes x(i+1) from x(i); x(0) is the input. The loss computes
// y(L), the gradient of x(L); the backward of layer i computes y(i), the gradient of x(i), from
// y(i+1). That backward needs what a forward with gradients has kept, which is called X(i+1) here
// and includes x(i+1), and it needs x(i). x(i) is there when it was kept by itself or as a part of
// X(i). The operations (Beaumont et al., "Optimal Re-materialization Strategies for Heterogeneous
// Chains", ACM TOMS 50(2), 2024: F∅, Fck, Fall, B):
//
//	forward i        x(i) -> x(i+1) without gradients; afterwards x(i) is dropped, unless it is a part of X(i)
//	forward_keep i   x(i) -> x(i+1) without gradients; x(i) stays
//	forward_save i   x(i) -> X(i+1)
//	loss             x(L) -> y(L); afterwards x(L) is dropped, unless it is a part of X(L)
//	backward i       x(i), X(i+1), y(i+1) -> y(i); afterwards X(i+1) and y(i+1) are dropped, and x(i), unless it is a part of X(i)
//
// An operation may not make what is already there. A plan is complete when backward 0 has run,
// which every other backward precedes in descending order, each once, and the loss them all.
//
// # Bytes
//
// In the simplest chain all of these are blocks of their own: x(i+1) has Layers[i].Output bytes,
// X(i+1) Layers[i].Saved, which count x(i+1) too, and y(i+1) has Layers[i].Gradient. While an
// operation runs everything is there that was there before, what it makes, and its temporaries;
// what it drops is dropped afterwards. A backward also makes the gradients of the layer's
// parameters, WeightGradient bytes, which stay to the end, and may let go of some of X(i+1) and
// y(i+1) before it needs most. The peak is the greatest sum over all operations.
//
// Skip connections, and views, make inputs of several layers lie in the same memory. Carry{From,
// To, Bytes} in Carries says that so many bytes of what layer From makes (of Layers[From].Output;
// of Input for From = -1), which are a part of x(From+1), are a part of x(i) for all From+1 <= i <=
// To. They are counted once, however many of those are there, and stay until the last of them goes.
// In GradientCarries it says that so many bytes of what the backward of layer To makes as y(To), of
// Layers[To-1].Gradient, are a part of y(i) for all To >= i >= From+1: a gradient that is made at
// To and used by the backward of From. To = L is made by the loss.
package remat
