// Package planner plans a training step of a pipe before anything runs.
//
// A [Problem] is the input: the layers and the device of each stage, its measured costs, the bytes
// that its device may hold, and its policy of recomputation. [Solve] makes a [Plan] of it, or fails
// with a [MemoryError] that lists the stages which do not fit and the least limits that would do. A
// Plan has the program of every worker, the operations of every stage and micro-batch, and
// predictions of time and memory. It prints, parses, is checked and is drawn.
//
// The package is pure: it has numbers and names, no tensors and no clocks. All its functions may be
// called at the same time.
package planner
