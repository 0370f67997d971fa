package train

import "fmt"

// EndsEpoch reports whether a run that stands after so many batches of an epoch takes the last of them
// before Steps or Epochs end it. The epoch is counted from 0 and has so many batches. Step says how
// many steps were taken before.
func (l *Loop) EndsEpoch(epoch, batch, batches int) bool {
	if batch >= batches { // its end is still to come
		epoch, batch = epoch+1, 0
	}
	each := max(l.Accumulate, 1)
	updates := int64((batches - batch + each - 1) / each)
	return (l.Epochs == 0 || epoch < l.Epochs) && (l.Steps == 0 || updates <= l.Steps-l.Step)
}

// checkLastBatch returns an error if the run comes to an epoch's last batch, and that has fewer rows
// than there are replicas.
func (l *Loop) checkLastBatch() error {
	rows, at := l.Loader.LastBatch(), l.position()
	if l.Pipe.MicroBatches(int64(rows)) > 0 || l.stopped() || !l.EndsEpoch(at.Epoch, at.Batch, l.Loader.Batches()) {
		return nil
	}
	return fmt.Errorf("train: an epoch's last batch has %d rows for %d replicas; want another batch size, or LoaderConfig.DropLast",
		rows, l.Pipe.Config().Replicas)
}
