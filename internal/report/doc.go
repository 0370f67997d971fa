// Package report shows a training run as a page of HTML: the schedule of a step as it was planned and
// as it ran, the bytes of each device over it, the layers with their costs and whether they are
// computed again, the numbers of each step, and how time depends on memory. It is for people who look
// at a run; programs read its sources (Run, package metrics).
//
//	err := report.Write(w, report.Page{Run: run, History: history})
//
// A page is one file that loads nothing. Its Content-Security-Policy lets no script run but its own,
// and names reach the page as data that is shown as text. Live serves the same page of a run that goes
// on. The package measures nothing and knows no tensors.
package report
