package autoremat

import (
	"slices"

	"penstock.example/remat"
)

// forecast predicts the bytes of a step. forecastOf counts them from those that are live when the
// first operation begins; Module.forecast adds these.
type forecast struct {
	forward, loss, backward int64   // peak of each
	update                  int64   // peak of the update; 0 if it is not known
	end                     int64   // live when Backward has returned
	peaks, live             []int64 // by operation: peak during it, live after it
}

// peak returns the peak of the whole step.
func (f forecast) peak() int64 { return max(f.forward, f.loss, f.backward, f.update) }

// forecastOf replays ops. From the loss on, the caller holds the output and what the loss says.
func forecastOf(c remat.Chain, ops []remat.Op, l loss) (forecast, error) {
	report, err := remat.Check(c, ops)
	if err != nil {
		return forecast{}, err
	}
	last := len(c.Layers) - 1
	output := c.Layers[last].Output
	f := forecast{peaks: slices.Clone(report.Peaks), live: slices.Clone(report.Resident)}
	at := slices.Index(ops, remat.Op{Kind: remat.LossStep})
	before := int64(0)
	if at > 0 {
		before = report.Resident[at-1]
	}
	f.peaks[at] = before + l.peak
	// beyond is what is live and not in the replay: what the loss keeps, and the output, which the
	// replay may have dropped.
	beyond := before + l.held + l.gradient - report.Resident[at]
	f.live[at] += beyond
	for k := at + 1; k < len(ops); k++ {
		f.peaks[k] += beyond
		if ops[k] == (remat.Op{Kind: remat.Backward, Layer: last}) {
			beyond = l.held + l.lent + output
		}
		f.live[k] += beyond
	}
	if at > 0 {
		f.forward = slices.Max(f.peaks[:at])
	}
	f.loss = f.peaks[at]
	f.backward = slices.Max(f.peaks[at+1:])
	f.end = f.live[len(f.live)-1] - l.held + l.kept
	return f, nil
}
