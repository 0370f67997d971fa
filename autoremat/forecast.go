package autoremat

import (
	"slices"

	"penstock/remat"
)

// forecast is what a step will take. Until it is placed the bytes are beside those that are live when the first operation begins.
type forecast struct {
	forward, loss, backward int64 // most in each
	update                  int64 // most in the update; 0 if it is not known
	end                     int64 // live when Backward has returned
	peaks, live             []int64
}

func (f forecast) most() int64 { return max(f.forward, f.loss, f.backward, f.update) }

// forecastOf replays operations beside a caller who holds the output from the loss on, and what the loss says.
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
	// What there is beyond the replay: what the loss has left, and the output, where the replay has dropped it.
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
