// Package report shows a training run as a page of HTML: a step as planned and as it ran, the bytes
// of each device, the layers with their costs and recomputations, the numbers of each step, and how
// time depends on memory. The page is for people; programs read its sources (Run, package metrics).
//
//	text, err := report.Page{Run: run, History: history}.HTML()
//
// A page is one file that loads nothing. Its Content-Security-Policy runs no script but its own,
// and names are shown as text. Live serves the same page while the run goes on. The package
// measures nothing and knows no tensors.
package report
