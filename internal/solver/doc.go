// Package solver finds the plan of least time for a chain of layers under a limit of bytes, or for
// all micro-batches of a stage: exactly up to some 60 layers, by tables up to 250 with a bound that
// no plan is below, and with joined layers beyond.
package solver
