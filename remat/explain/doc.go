// Package explain says what a plan does with each layer and what more memory would save, and draws
// it.
package explain
