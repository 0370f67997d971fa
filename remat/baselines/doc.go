// Package baselines has the plans of the usual strategies, and compares them with the best ones at
// the same memory.
package baselines
