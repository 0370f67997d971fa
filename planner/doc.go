// Package planner decides what a pipe does in a training step, before anything runs.
//
// A [Problem] is what is known: the layers and the device of each stage, what the stage takes
// (measured), what its device may hold, and the policy of recomputation. [Solve] makes a [Plan] of
// it, or a [MemoryError] that says which stages do not fit and the least limits that would do. A
// Plan has the program of every worker, the operations of every stage and micro-batch, and what is
// predicted of time and memory. It prints, parses, is checked and drawn.
//
// The package is pure: it knows numbers and names, no tensors and no clocks.
package planner
